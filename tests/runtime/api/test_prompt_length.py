from millrace_runtime.api.request.context_length import fit_prompt
from millrace_runtime.api.request.generation_request import build_request
from millrace_runtime.api.request.openai_bodies import CompletionBody
from millrace_runtime.protocol.messages import EngineReady
from millrace_runtime.protocol.step import Placement


def fit(max_tokens: int | None) -> int:
    """Blocks of a windowed group are given back, so they hold fewer tokens than a sequence may have."""
    ready = EngineReady(
        max_model_length=100,
        num_blocks=4,
        kv_tokens=8,
        block_size=2,
        max_sequences=4,
        vocabulary_size=50,
        placement=Placement("cpu", "torch", "float32", "FromCheckpoint", 1),
        startup_seconds={},
    )
    body = CompletionBody(prompt="", max_tokens=max_tokens)
    request = build_request(body, 1, max_tokens, default_max_tokens=1000, num_logprobs=None)
    return fit_prompt([1] * 20, request, ready)


def test_the_engines_own_bound_is_the_only_one() -> None:
    assert fit(5) == 5
    assert fit(None) == 80
