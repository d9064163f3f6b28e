"""Prometheus' own arithmetic: increases over a window, and quantiles of histograms."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

EXTRAPOLATED = 1.1
"""Samples further apart than this times their mean distance are not extrapolated to a window's end."""


class Span(NamedTuple):
    """Which samples of a series lie in a window, and how far it reaches beyond them, in seconds."""

    first: int
    last: int
    sampled: float
    to_begin: float
    to_end: float


def find_span(times: Sequence[float], end: float, window: float) -> Span | None:
    """Return the samples in a window that ends at `end`; None where fewer than two are in it."""
    begin = end - window
    first = bisect_right(times, begin)
    last = bisect_right(times, end) - 1
    if last <= first:
        return None
    sampled = times[last] - times[first]
    mean = sampled / (last - first)
    to_begin, to_end = times[first] - begin, end - times[last]
    return Span(
        first,
        last,
        sampled,
        mean / 2 if to_begin >= EXTRAPOLATED * mean else to_begin,
        mean / 2 if to_end >= EXTRAPOLATED * mean else to_end,
    )


def increase(span: Span, first: float, delta: float) -> float:
    """Return PromQL's `increase` of a counter that rose by `delta` from a first sample.

    It is not extrapolated to before the counter was zero.
    """
    if delta <= 0:
        return 0.0
    _, _, sampled, to_begin, to_end = span
    return delta * (sampled + min(to_begin, sampled * first / delta) + to_end) / sampled


def histogram_quantile(quantile: float, bounds: Sequence[float], counts: Sequence[float]) -> float | None:
    """Return the quantile of counts by bucket, the last of them above all bounds; None of nothing."""
    rank = quantile * sum(counts)
    if rank <= 0:
        return None
    below = 0.0
    for index, bound in enumerate(bounds):
        if below + counts[index] >= rank:
            lower = bounds[index - 1] if index else 0.0
            return lower + (bound - lower) * (rank - below) / counts[index]
        below += counts[index]
    return bounds[-1]
