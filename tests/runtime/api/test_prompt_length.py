from millrace_runtime.api.prompts import fit_prompt
from millrace_runtime.protocol.messages import EngineReady


def test_the_engines_own_bound_is_the_only_one() -> None:
    """Blocks of a windowed group are given back, so they hold fewer tokens than a sequence may have."""
    ready = EngineReady(
        max_model_length=100, num_blocks=4, block_size=2, vocabulary_size=50, startup_seconds={}
    )
    assert fit_prompt([1] * 20, 5, ready) == 5
    assert fit_prompt([1] * 20, None, ready) == 80
