"""What rows with grammars, or with all of sampling, leave of the rate of rows without.

Our server is asked for the same number of tokens in both ways, one after the other within each round. Another
engine that knows schemas gets the same ones in the same rounds.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.requests.schemas import draw_long_schemas
from benchmarks.runtime import client
from benchmarks.runtime.bystanders import Bystanders
from benchmarks.runtime.client import Prompt, WithFields
from benchmarks.runtime.engines import EngineSpec, RunningEngine, ServerEngine
from benchmarks.runtime.errors import EngineError
from benchmarks.runtime.figures import Spread, ratios, spread
from benchmarks.runtime.ours import MODEL_NAME, our_server
from benchmarks.runtime.progress import report
from benchmarks.runtime.rounds import ask, running
from benchmarks.runtime.workload import Case, Figure, compute_rate, find_fault

GRAMMAR_CASE = Case("rows with a schema", Figure.OUTPUT, 16, 128, 64)
SAMPLING_CASE = Case("rows with all of sampling", Figure.OUTPUT, 32, 128, 64)
SAMPLING: Mapping[str, Any] = {
    "temperature": 0.8,
    "top_k": 50,
    "top_p": 0.9,
    "min_p": 0.02,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.3,
    "frequency_penalty": 0.3,
    "logit_bias": {"300": 1.0, "301": -1.0},
    "seed": 7,
}
CASES: Mapping[str, tuple[Case, Sequence[Mapping[str, Any]]]] = {
    "json_schema_over_free": (
        GRAMMAR_CASE,
        [
            {"response_format": {"type": "json_schema", "json_schema": {"name": "row", "schema": schema}}}
            for schema in draw_long_schemas(GRAMMAR_CASE.num_requests)
        ],
    ),
    "sampling_all_over_greedy": (SAMPLING_CASE, [SAMPLING]),
}
"""By figure: the case, and the fields of its rows, which they take in turn."""


OVER_PEER = "json_schema_over_vllm"


def measure_rows(
    model: Path, folder: Path, num_rounds: int, bystanders: Bystanders, *, is_quick: bool
) -> dict[str, Spread]:
    """Return, for each figure, the rate with these fields over that without. Raises EngineError."""
    found: dict[str, Spread] = {}
    with our_server(model, "bf16").start(folder) as engine:
        for name, (case, fields) in CASES.items():
            measured = case.shorten() if is_quick else case
            rates = [
                compare(engine, measured, fields, str(number), bystanders) for number in range(num_rounds)
            ]
            found[name] = spread(ratios(*zip(*rates, strict=True)))
            report(f"{name}: {found[name].median:.2f}")
    return found


def measure_schemas_beside(
    peer: EngineSpec, model: Path, folder: Path, num_rounds: int, bystanders: Bystanders, *, is_quick: bool
) -> Spread:
    """Return our rate with schemas over the peer's, which is asked as ours is. Raises EngineError."""
    case, fields = CASES["json_schema_over_free"]
    measured = case.shorten() if is_quick else case
    with our_server(model, "bf16").start(folder) as ours, peer.start(folder) as other:
        pairs: list[list[float]] = []
        for engine in (ours, other):
            engine.pause()
        for number in range(-1, num_rounds):  # the first one warms up
            pairs.append([0.0, 0.0])
            for place in (0, 1) if number % 2 else (1, 0):
                engine = (ours, other)[place]
                assert isinstance(engine, ServerEngine)
                with running(engine), bystanders.watch(engine):
                    pairs[-1][place] = ask_with(engine, measured, fields, f"beside {number}")
        found = spread(ratios(*zip(*pairs[1:], strict=True)))
        report(f"{OVER_PEER}: {found.median:.2f}; ours and the peer's: {pairs[1:]}")
        return found


def compare(
    engine: RunningEngine,
    case: Case,
    fields: Sequence[Mapping[str, Any]],
    seed: str,
    bystanders: Bystanders,
) -> tuple[float, float]:
    """Return the rate with and without fields. Every second round begins without fields.

    Both have prompts of their own: the second ones would be in the engine's prefix cache.
    """
    assert isinstance(engine, ServerEngine)
    with running(engine), bystanders.watch(engine):
        ask_with(engine, case.shorten(), fields, f"warm {seed}")
        if int(seed) % 2:
            free = ask(engine, case, f"free {seed}")
            return ask_with(engine, case, fields, seed), free
        return ask_with(engine, case, fields, seed), ask(engine, case, f"free {seed}")


def ask_with(engine: ServerEngine, case: Case, fields: Sequence[Mapping[str, Any]], seed: str) -> float:
    """Do as `ask` does, with more fields in the requests. Raises EngineError."""
    prompts: list[Prompt] = list(case.draw_prompts(seed))
    dialect = WithFields(MODEL_NAME, fields)
    completions = client.complete(engine.base, dialect, prompts, case.num_output_tokens)
    if (fault := find_fault(case, completions)) is not None:
        raise EngineError(fault)
    return compute_rate(case, completions)
