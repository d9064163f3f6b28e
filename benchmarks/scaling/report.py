"""The trials as a table and as figures. Pure."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from benchmarks.scaling.outcome import Outcome, choose_best

HEAD = (
    f"{'scrapes':>7}  {'autoscaler':<10}  {'TTFT kept':>9}  {'TPOT kept':>9}  {'P95 TTFT':>8}  "
    f"{'replica-s':>9}  {'highest':>7}  {'refused':>7}  {'broken':>6}  objectives"
)


@dataclass(frozen=True)
class Round:
    """All trials at one scrape interval."""

    scrape_seconds: int
    window_seconds: float
    ours: Outcome
    peers: tuple[Outcome, ...]
    """The HPA, with each of its targets."""

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """Of all trials, ours first."""
        return (self.ours, *self.peers)

    @property
    def best_peer(self) -> Outcome:
        """The HPA that ours is compared with."""
        return choose_best(self.peers)

    @property
    def ratio(self) -> float | None:
        """Our replica-seconds over those of the best HPA.

        None where ours misses an objective: to be cheaper is then no merit.
        """
        if not self.ours.keeps_objectives:
            return None
        return self.ours.replica_seconds / self.best_peer.replica_seconds


def render(rounds: Sequence[Round]) -> list[str]:
    """Return the table, and a line for each scrape interval that compares ours with the best HPA."""
    rows = [render_row(one.scrape_seconds, outcome) for one in rounds for outcome in one.outcomes]
    return [HEAD, *rows, "", *map(_render_comparison, rounds)]


def render_row(scrape_seconds: int, one: Outcome) -> str:
    """Return a trial's row of the table."""
    return (
        f"{f'{scrape_seconds} s':>7}  {one.name:<10}  {one.ttft_share:>9.1%}  {one.tpot_share:>9.1%}  "
        f"{f'{one.ttft_p95_seconds:.2f} s':>8}  {one.replica_seconds:>9.0f}  {one.highest_count:>7}  "
        f"{one.num_refused:>7}  {one.num_broken:>6}  {_describe_kept(one)}"
    )


def _render_comparison(one: Round) -> str:
    best, ratio = one.best_peer, "none" if one.ratio is None else f"{one.ratio:.2f}"
    return (
        f"scrapes every {one.scrape_seconds} s: ours {one.ours.replica_seconds:.0f} replica-seconds, "
        f"objectives {_describe_kept(one.ours)}; the best of the HPAs, {best.name}, "
        f"{best.replica_seconds:.0f}, objectives {_describe_kept(best)}; ratio {ratio}"
    )


def _describe_kept(one: Outcome) -> str:
    return "kept" if one.keeps_objectives else "missed"


def describe(rounds: Sequence[Round]) -> dict[str, Any]:
    """Return the figures: for each scrape interval the comparison, and all trials."""
    return {f"scrapes_{one.scrape_seconds}s": _describe_round(one) for one in rounds}


def _describe_round(one: Round) -> dict[str, Any]:
    return {
        "scale_down_window_seconds": one.window_seconds,
        "keeps_objectives": one.ours.keeps_objectives,
        "best_hpa": one.best_peer.name,
        "best_hpa_keeps_objectives": one.best_peer.keeps_objectives,
        "replica_seconds_over_best_hpa": None if one.ratio is None else round(one.ratio, 3),
        "trials": [_describe_outcome(outcome) for outcome in one.outcomes],
    }


def _describe_outcome(one: Outcome) -> dict[str, Any]:
    """Where more than 5 % had no first token, P95 is no number, and JSON has no infinity."""
    figures = asdict(one)
    shares = {name: round(value, 4) for name, value in figures.items() if name.endswith("_share")}
    seconds = {
        name: round(value, 2) if isfinite(value) else None
        for name, value in figures.items()
        if name.endswith("_seconds")
    }
    return figures | shares | seconds
