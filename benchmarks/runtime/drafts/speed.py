"""Our server with drafts over itself without, on texts that are known: guesses that hold, and that never do.

Both servers get the same prompts and seeds in each round, and must give the same text.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from benchmarks.runtime.drafts.checkpoint import WALKING, write_walking_model
from benchmarks.runtime.drafts.texts import MISLEADING, Walks
from benchmarks.runtime.engines import ServerEngine
from benchmarks.runtime.errors import EngineError
from benchmarks.runtime.figures import ratios, spread
from benchmarks.runtime.loads.caller import call
from benchmarks.runtime.loads.setting import Found, Setting
from benchmarks.runtime.metrics import read_totals
from benchmarks.runtime.ours import with_tokens
from benchmarks.runtime.progress import report
from benchmarks.runtime.published import DRAFTS_C32, DRAFTS_FAIL, DRAFTS_SINGLE
from benchmarks.runtime.report import render_spread
from benchmarks.runtime.rounds import ask, running
from benchmarks.runtime.workload import WAKE, Figure
from millrace_runtime import contract

NUM_DRAFTED = 4
SAMPLED = {"temperature": 1.0, "seed": 7}
"""Of two tokens that are equally likely a greedy text would always have the same one."""
CASES: Mapping[str, Walks] = {
    DRAFTS_SINGLE: Walks("drafts that hold", Figure.DECODE, 1, 256, 256),
    DRAFTS_FAIL: Walks("drafts that fail", Figure.DECODE, 1, 256, 256, MISLEADING),
    DRAFTS_C32: Walks("32 drafts that hold", Figure.OUTPUT, 32, 256, 64),
}
"""By figure."""


def measure_drafts(setting: Setting) -> Found:
    """Return the figures. Raises EngineError, UnsupportedError."""
    setting.require(contract.FLAG_SPECULATIVE_TOKENS)
    flags = (contract.FLAG_SPECULATIVE_TOKENS, str(NUM_DRAFTED))
    dialect = with_tokens(**SAMPLED)
    report("writing a model whose text is known")
    model = write_walking_model(setting.folder / "walking", WALKING)
    with (
        setting.start("drafts", flags=flags, dialect=dialect, model=model) as drafting,
        setting.start("no-drafts", dialect=dialect, model=model) as plain,
    ):
        return {name: measure_case(setting, case, drafting, plain) for name, case in CASES.items()}


def measure_case(
    setting: Setting, case: Walks, drafting: ServerEngine, plain: ServerEngine
) -> dict[str, Any]:
    """Return a figure, with the share of drafted tokens that held. Raises EngineError."""
    case = case.shorten() if setting.is_quick else case
    compare_texts(case, drafting, plain)
    before, rates = read_drafts(drafting), {"on": list[float](), "off": list[float]()}
    for number in range(setting.num_rounds):
        for name, engine in (("on", drafting), ("off", plain))[:: -1 if number % 2 else 1]:
            with running(engine), setting.bystanders.watch(engine):
                ask(engine, WAKE, f"{case.name} {number}")
                rates[name].append(ask(engine, case, str(number)))
        report(f"round {number + 1}: {case.name} {rates['on'][-1]:.1f} over {rates['off'][-1]:.1f}")
    after = read_drafts(drafting)
    drafted, accepted = after.drafted - before.drafted, after.accepted - before.accepted
    shown = render_spread(spread(ratios(rates["on"], rates["off"])))
    return shown | {"accepted_share": round(accepted / drafted, 3) if drafted else None}


def compare_texts(case: Walks, *engines: ServerEngine) -> None:
    """Warm engines up. Raises EngineError where they continue a prompt in different ways."""
    (prompt, *_), texts = case.draw_prompts("warm"), list[list[int]]()
    for engine in engines:
        with running(engine):
            ask(engine, case.shorten(), "warm too")
            reply = call(engine, lambda caller: caller.ask(prompt, case.num_output_tokens))
            texts.append(reply.tokens)
    if texts[0] != texts[1]:
        raise EngineError(f"{case.name}: drafts change the text")


class Drafts(NamedTuple):
    """Tokens since the start."""

    drafted: float
    accepted: float


def read_drafts(engine: ServerEngine) -> Drafts:
    """Return what a server counts; 0 where it counts none."""
    with running(engine):
        totals = read_totals(engine.base)
    names = (contract.METRIC_DRAFTED, contract.METRIC_ACCEPTED)
    return Drafts(*(totals.get(f"{name}_total", 0.0) for name in names))
