"""The run's result: a table for people, and one JSON line from which the README's table is made."""

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.runtime.figures import Comparison, Rates, Spread, compare_manners, compare_with_best, spread

COMPARED = (
    ("single", ("bf16", "int8", "int4")),
    ("prefill", ("bf16", "int8")),
    ("c8", ("bf16",)),
    ("c32", ("bf16", "int8", "int4")),
)
"""Which cases are put over the best peer's, and at which precisions."""
ALONE = "no ratio to a peer: ours and a peer were not both measured at one precision"


def render_rows(rates: Rates) -> list[dict[str, Any]]:
    """Return every row's median and range, in tokens a second."""
    return [
        {"case": row.case, "precision": row.precision, "engine": row.engine, "manner": str(row.manner)}
        | render_spread(spread(found), digits=1)
        for row, found in rates.items()
    ]


def render_ratios(rates: Rates) -> dict[str, Any]:
    """Return ours over the best peer, and over HTTP over in process, by the names the README uses."""
    found: dict[str, Any] = {}
    for case, precisions in COMPARED:
        for precision in precisions:
            if (comparison := compare_with_best(rates, case, precision)) is not None:
                found[f"{case}_{precision}_over_best"] = render_comparison(comparison)
    for case in ("single", "c32"):
        if (kept := compare_manners(rates, case, "bf16")) is not None:
            found[f"http_over_engine_{case}"] = render_spread(kept)
    return found


def render_comparison(comparison: Comparison) -> dict[str, Any]:
    """Return a ratio's spread and what it is over."""
    return render_spread(comparison.ratio) | {"over": comparison.over}


def render_spread(found: Spread, digits: int = 3) -> dict[str, float]:
    """Return a spread as JSON has it."""
    return {name: round(value, digits) for name, value in found._asdict().items()}


def render_table(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that a person reads."""
    machine = result["machine"]
    yield f"Our runtime on {machine['cpu']}, {machine['cores']} cores, {', '.join(machine['flags'])}"
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
        yield f"  {name:<42}{render_range(figure):>24}{over}"
    if not any("over" in figure for figure in result["figures"].values()):
        yield f"  {ALONE}"


def render_range(found: Mapping[str, Any], digits: int = 2) -> str:
    """Return a median with its range in brackets."""
    return f"{found['median']:.{digits}f} ({found['lowest']:.{digits}f}–{found['highest']:.{digits}f})"
