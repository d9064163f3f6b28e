"""Which value of a knob to try next. Pure.

A peer is compared at its best. The best value lies between the cheapest one that is good and the next one
that is cheaper and not good, or beyond the end of what was tried.
"""

from collections.abc import Collection, Mapping

from benchmarks.autoscaler.choice import attain, average
from benchmarks.autoscaler.jobs import Result
from millrace_operator.autoscaler.simulate.policies.clairvoyant import BAR

CLOSE = 0.05
"""Two values that differ by less are not told apart."""


def propose(found: Mapping[float, Collection[Result]], *, is_whole: bool) -> float | None:
    """Return the value to try next; None where the best one is known closely enough."""
    values = sorted(found)
    if len(values) < 2:
        return None
    good = [value for value in values if attain(found[value]) >= BAR]
    if not good:
        best = max(values, key=lambda value: attain(found[value]))
        return _extend(values, values.index(best), is_whole=is_whole)
    best = min(good, key=lambda value: average(found[value]))
    index = values.index(best)
    for beside in (index - 1, index + 1):
        if not 0 <= beside < len(values):
            continue
        if attain(found[values[beside]]) < BAR and average(found[values[beside]]) < average(found[best]):
            return _halve(best, values[beside], is_whole=is_whole)
    return _extend(values, index, is_whole=is_whole)


def _halve(one: float, other: float, *, is_whole: bool) -> float | None:
    middle = (one + other) / 2
    if is_whole:
        return None if abs(one - other) < 2 else float(round(middle))
    return None if abs(one - other) <= CLOSE * max(one, other) else round(middle, 4)


def _extend(values: list[float], index: int, *, is_whole: bool) -> float | None:
    """Return a value as far beyond an end as the one before it is away; None inside."""
    if index not in (0, len(values) - 1):
        return None
    end, inner = values[index], values[1 if index == 0 else -2]
    beyond = end * end / inner
    return float(max(round(beyond), 1)) if is_whole else round(beyond, 4)
