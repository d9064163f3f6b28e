"""The run's result: a table for people, and one JSON line which the published table is made of."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from benchmarks.runtime.figures import (
    Comparison,
    Manner,
    Rates,
    Row,
    Spread,
    compare_manners,
    compare_with_best,
    spread,
)
from benchmarks.runtime.replicas import SHARED_CASES
from benchmarks.runtime.workload import PRECISIONS


class Aim(NamedTuple):
    """What a figure's median should reach."""

    at_least: float | None = None
    at_most: float | None = None

    def __str__(self) -> str:
        return f"at least {self.at_least}" if self.at_least is not None else f"at most {self.at_most}"

    def is_met(self, median: float) -> bool:
        """Whether a median reaches it."""
        return (self.at_least is None or median >= self.at_least) and (
            self.at_most is None or median <= self.at_most
        )


COMPARED = (
    ("single", ("bf16", "int8", "int4")),
    ("prefill", ("bf16", "int8")),
    ("c8", ("bf16",)),
    ("c32", ("bf16", "int8", "int4")),
)
"""Which cases are put over the best peer's, and at which precisions."""
MANNERS_COMPARED = ("single", "c32")
"""In which cases our engine over HTTP is put over the same in process."""
FIGURES = (
    *(f"{case}_{precision}_over_best" for case, precisions in COMPARED for precision in precisions),
    *(f"http_over_engine_{case}_{precision}" for case in MANNERS_COMPARED for precision in PRECISIONS),
    "decode_over_memory_limit",
    *(f"two_replicas_over_one_{case.name}" for case in SHARED_CASES),
    "start_seconds_over_python_peers",
)
"""All that a run with every engine finds beside REQUEST_FIGURES, in the order of the published table."""
REQUEST_FIGURES = (
    "json_schema_over_free",
    "sampling_all_over_greedy",
    "schema_compile_ms_p50",
    "schema_compile_ms_p99",
    "mask_ms_p99",
    "lock_held_ms",
)
"""Of the parts `rows` and `grammars`, which know no peers."""
RANGE = ("median", "lowest", "highest")
AIMS = {
    "json_schema_over_free": Aim(at_least=0.95),
    "sampling_all_over_greedy": Aim(at_least=0.9),
    "schema_compile_ms_p50": Aim(at_most=2),
    "schema_compile_ms_p99": Aim(at_most=50),
    "mask_ms_p99": Aim(at_most=1),
    "lock_held_ms": Aim(at_most=5),
} | {
    f"http_over_engine_{case}_{precision}": Aim(at_least=0.95)
    for case in MANNERS_COMPARED
    for precision in PRECISIONS
}
"""Figures without one are compared with other engines."""
ALONE = "no ratio to a peer: ours and a peer were not both measured at one precision"


def render_rows(rates: Rates) -> list[dict[str, Any]]:
    """Return every row's median, range and rounds, in tokens a second."""
    return [
        {"case": row.case, "precision": row.precision, "engine": row.engine, "manner": str(row.manner)}
        | render_spread(spread(found), digits=2)
        for row, found in rates.items()
    ]


def render_ratios(rates: Rates) -> dict[str, Any]:
    """Return ours over the best peer, and over HTTP over in process, by their published names."""
    found: dict[str, Any] = {}
    for case, precisions in COMPARED:
        for precision in precisions:
            if (comparison := compare_with_best(rates, case, precision)) is not None:
                found[f"{case}_{precision}_over_best"] = render_comparison(comparison)
    for case, precision in itertools.product(MANNERS_COMPARED, PRECISIONS):
        if (kept := compare_manners(rates, case, precision)) is not None:
            found[f"http_over_engine_{case}_{precision}"] = render_spread(kept)
    return found


def render_comparison(comparison: Comparison) -> dict[str, Any]:
    """Return a ratio's spread and what it is over."""
    return render_spread(comparison.ratio) | {"over": comparison.over}


def render_spread(found: Spread, digits: int = 3) -> dict[str, Any]:
    """Return a spread as JSON has it."""
    rounded = [round(value, digits) for value in found.rounds]
    return {name: round(getattr(found, name), digits) for name in RANGE} | {"rounds": rounded}


def read_rates(rows: Iterable[Mapping[str, Any]]) -> Rates:
    """Return the rates that a result's rows tell: of them its ratios can be taken again."""
    return {
        Row(row["case"], row["precision"], row["engine"], Manner(row["manner"])): row["rounds"]
        for row in rows
    }


def render_table(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that a person reads."""
    machine = result["machine"]
    yield f"Our runtime on {describe_cpu(machine)}, {machine['cores']} cores, {', '.join(machine['flags'])}"
    if (busy := machine["busy_percent_of_others"]) is not None:
        yield f"  others kept {busy['median']} % of it busy, {busy['highest']} % in the worst turn"
    for name, version in result["engines"].items():
        yield f"  {name} {version}"
    for name, reason in result["left_out"].items():
        yield f"  left out: {name}: {reason}"
    for row in result["rows"]:
        label = f"{row['case']} {row['precision']} {row['engine']} {row['manner']}"
        yield f"  {label:<42}{render_range(row, digits=1):>24} tokens/s"
    for name, found in result["start_seconds"].items():
        yield f"  {name + ', start to first token':<42}{render_range(found, digits=1):>24} s"
    for name, figure in result["figures"].items():
        over = f" over {figure['over']}" if "over" in figure else ""
        over += f", {figure['bytes_per_token']} bytes a token" if "bytes_per_token" in figure else ""
        over += f", aim {AIMS[name]}" if name in AIMS else ""
        yield f"  {name:<42}{render_range(figure):>24}{over}"
    if not any("over" in figure for figure in result["figures"].values()):
        yield f"  {ALONE}"
    if "failed" in result:
        yield f"  ended early, as ours failed: {result['failed']}"


def describe_cpu(machine: Mapping[str, Any]) -> str:
    """Return the CPU's name, and its model where it is known: some machines name only the maker."""
    return f"{machine['cpu']} ({machine['cpu_model']})" if "cpu_model" in machine else str(machine["cpu"])


def render_range(found: Mapping[str, Any], digits: int = 2) -> str:
    """Return a median with its range in brackets."""
    return f"{found['median']:.{digits}f} ({found['lowest']:.{digits}f}–{found['highest']:.{digits}f})"
