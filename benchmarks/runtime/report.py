"""The run's result: a table for people, and one JSON line which the published table is made of."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from benchmarks.runtime.figures import (
    Comparison,
    Manner,
    Rates,
    Row,
    Spread,
    compare_manners,
    compare_with_best,
    compare_with_former,
    spread,
)
from benchmarks.runtime.models.subjects import Subject
from benchmarks.runtime.published import (
    AIMS,
    MANNERS_COMPARED,
    SHARED_PREFIX_OVER_BEST,
    name_over_best,
    name_over_engine,
    name_over_itself,
)
from benchmarks.runtime.workload import PRECISIONS, SHARED_PREFIX

RANGE = ("median", "lowest", "highest")
BESIDE = {
    "bytes_per_token": "{} bytes a token",
    "target_ms": "target {} ms",
    "accepted_share": "{} of the drafted tokens held",
}
"""What the table says beside a figure that has it."""
ALONE = "no ratio to a peer: ours and a peer were not both measured at one precision"


def render_rows(rates: Rates) -> list[dict[str, Any]]:
    """Return every row's median, range and rounds, in tokens a second."""
    return [
        {"case": row.case, "precision": row.precision, "engine": row.engine, "manner": str(row.manner)}
        | render_spread(spread(found), digits=2)
        for row, found in rates.items()
    ]


def render_ratios(subject: Subject, rates: Rates) -> dict[str, Any]:
    """Return ours over the best peer, over HTTP over in process, and over a former commit, by their names."""
    found: dict[str, Any] = {}
    for case, precision in subject.list_rows():
        if (comparison := compare_with_best(rates, case, precision)) is not None:
            found[name_over_best(subject, case, precision)] = render_comparison(comparison)
    if (comparison := compare_with_best(rates, SHARED_PREFIX, "bf16")) is not None:
        found[SHARED_PREFIX_OVER_BEST] = render_comparison(comparison)
    for case, precision in itertools.product(MANNERS_COMPARED, PRECISIONS):
        if (kept := compare_manners(rates, case, precision)) is not None:
            found[name_over_engine(case, precision)] = render_spread(kept)
    for case, precision, manner in subject.list_own_rows():
        if (ratio := compare_with_former(rates, case, precision, manner)) is not None:
            found[name_over_itself(subject, case, precision, manner)] = render_spread(ratio)
    return found


def render_comparison(comparison: Comparison) -> dict[str, Any]:
    """Return a ratio's spread and what it is over."""
    return render_spread(comparison.ratio) | {"over": comparison.over}


def render_spread(found: Spread, digits: int = 3) -> dict[str, Any]:
    """Return a spread as JSON has it."""
    rounded = [round(value, digits) for value in found.rounds]
    return {name: round(getattr(found, name), digits) for name in RANGE} | {"rounds": rounded}


def read_rates(rows: Iterable[Mapping[str, Any]]) -> Rates:
    """Return the rates in a result's rows, from which its ratios can be computed again."""
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
        over += "".join(f", {words.format(figure[key])}" for key, words in BESIDE.items() if key in figure)
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
