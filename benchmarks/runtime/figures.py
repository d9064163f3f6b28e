"""From the rounds' rates to medians and ratios. Pure.

A ratio is taken within a round, where both engines had the same minute of the machine, and the median of
these ratios is published: the ratio of two medians would compare different minutes.
"""

import enum
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class Manner(enum.StrEnum):
    """How an engine is asked. Only engines asked in the same manner are compared."""

    HTTP = "over HTTP"
    LIBRARY = "in process"


class Row(NamedTuple):
    """What one engine did in one case."""

    case: str
    precision: str
    engine: str
    manner: Manner


class Spread(NamedTuple):
    """A median, and the range over the rounds."""

    median: float
    lowest: float
    highest: float
    rounds: tuple[float, ...]
    """Every round's value."""


class Comparison(NamedTuple):
    """Ours over the peer that we do worst against."""

    ratio: Spread
    over: str


Rates = Mapping[Row, Sequence[float]]
"""Each row's rate, round by round."""
OURS = "millrace"
FORMER = "former"
"""A former commit of ours: no peer."""
OWN_ROUNDING = "millrace, rounding while it loads"
"""Ours too: no peer of ours with a quantised checkpoint."""


def spread(values: Iterable[float]) -> Spread:
    """Return the median and the range of at least one value."""
    known = tuple(values)
    return Spread(statistics.median(known), min(known), max(known), known)


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return ours over theirs, round by round."""
    return [our / their for our, their in zip(ours, theirs, strict=True)]


def compare_with_best(rates: Rates, case: str, precision: str) -> Comparison | None:
    """Return ours over the best peer of this case, or None where there is no peer or none of ours.

    The best peer is the one with the least median ratio.
    """
    comparisons = [
        Comparison(spread(ratios(rates[ours], theirs)), f"{row.engine} {row.manner}")
        for row, theirs in rates.items()
        if row.engine not in (OURS, FORMER, OWN_ROUNDING)
        and (row.case, row.precision) == (case, precision)
        and (ours := row._replace(engine=OURS)) in rates
    ]
    return min(comparisons, key=lambda comparison: comparison.ratio.median, default=None)


def compare_manners(rates: Rates, case: str, precision: str) -> Spread | None:
    """Return what HTTP leaves of our engine's own rate, or None if either was not measured."""
    over_http = rates.get(Row(case, precision, OURS, Manner.HTTP))
    in_process = rates.get(Row(case, precision, OURS, Manner.LIBRARY))
    if over_http is None or in_process is None:
        return None
    return spread(ratios(over_http, in_process))


def compare_with_former(rates: Rates, case: str, precision: str, manner: Manner) -> Spread | None:
    """Return our rate over our former commit's, or None if either was not measured."""
    ours, former = (rates.get(Row(case, precision, engine, manner)) for engine in (OURS, FORMER))
    return None if ours is None or former is None else spread(ratios(ours, former))
