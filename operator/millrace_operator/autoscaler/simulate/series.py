"""Prometheus' samples of one target, and its arithmetic: increases over a window, quantiles of histograms."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter, lt, sub
from typing import NamedTuple

from millrace_operator.autoscaler.signals.queries import ANSWER_LENGTHS
from millrace_operator.autoscaler.simulate.batch import Counters, Sample

EXTRAPOLATED = 1.1
"""Prometheus does not extrapolate to a window's end that is further away than so many mean distances."""


class Span(NamedTuple):
    """The samples of a series in a window, and the seconds from them to the window's ends."""

    first: int
    last: int
    sampled: float
    to_begin: float
    to_end: float


def find_span(times: Sequence[float], end: float, window: float) -> Span | None:
    """Return the samples in a window that ends at `end`; None if there are fewer than two."""
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

    It does not extrapolate to times before the counter was zero.
    """
    if delta <= 0:
        return 0.0
    _, _, sampled, to_begin, to_end = span
    return delta * (sampled + min(to_begin, sampled * first / delta) + to_end) / sampled


def histogram_quantile(quantile: float, bounds: Sequence[float], counts: Sequence[float]) -> float | None:
    """Return the quantile of counts by bucket, the last of them above all bounds; None without counts."""
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


LOOKBACK_SECONDS = 300.0
"""The largest age of a series' present value: Prometheus' default."""
_INDEX = {name: index for index, name in enumerate(Counters.NAMES)}
Read = Callable[[Sample], tuple[float, ...]]
_read_counters: Read = attrgetter("counters")
_READERS: dict[str, Read] = {
    "TimeToFirstToken": attrgetter("first_tokens"),
    "TimePerOutputToken": attrgetter("output_tokens"),
    "EndToEndLatency": attrgetter("whole_requests"),
    "QueueTime": attrgetter("queue_times"),
    ANSWER_LENGTHS: attrgetter("answer_lengths"),
}
"""Readers of the buckets, by an objective's metric, and of the answers' lengths."""


class Reset(NamedTuple):
    """Two scrapes in a row, between which at least one counter was reset."""

    before: Sample
    after: Sample


class Increases:
    """The increases of a target's counters in a window."""

    def __init__(self, span: Span, first: Sample, last: Sample, resets: Sequence[Reset]) -> None:
        self.span = span
        self.first = first
        self.last = last
        self._resets = resets
        self._rises = self._find_rises(_read_counters)
        self._risen: dict[str, list[tuple[int, float, float]]] = {}
        """By metric: the buckets that rose, each with its first value and its rise."""

    def of(self, name: str) -> float:
        """Return the increase of one counter."""
        index = _INDEX[name]
        return increase(self.span, self.first.counters[index], self._rises[index])

    def add_buckets(self, metric: str, counts: list[float]) -> None:
        """Add the increases of a histogram's buckets to these counts."""
        if (risen := self._risen.get(metric)) is None:
            read = _READERS[metric]
            pairs = zip(read(self.first), self._find_rises(read), strict=True)
            risen = self._risen[metric] = [(i, first, rise) for i, (first, rise) in enumerate(pairs) if rise]
        for index, first, rise in risen:
            counts[index] += increase(self.span, first, rise)

    def _find_rises(self, read: Read) -> list[float]:
        """Return the rise of each counter's samples; a counter that fell was reset to zero."""
        rises = list(map(sub, read(self.last), read(self.first)))
        for reset in self._resets:
            pairs = zip(read(reset.before), read(reset.after), strict=True)
            for index, (before, after) in enumerate(pairs):
                if after < before:
                    rises[index] += before
        return rises


class Series:
    """The scrapes of one target over the last minutes."""

    def __init__(self, keep_seconds: float) -> None:
        self._keep_seconds = keep_seconds
        self.times: list[float] = []
        self.scrapes: list[Sample] = []
        self._resets: list[Reset] = []
        self._is_stale = False
        self._known: dict[float, Increases] = {}
        """The newest answer for each length of window."""

    def add(self, scrape: Sample) -> None:
        """Keep a scrape, and forget the oldest."""
        if self.scrapes and _has_fallen(self.scrapes[-1], scrape):
            self._resets.append(Reset(self.scrapes[-1], scrape))
        self._is_stale = False
        self.times.append(scrape.at)
        self.scrapes.append(scrape)
        if self.times[0] < scrape.at - 2 * self._keep_seconds:
            kept = bisect_left(self.times, scrape.at - self._keep_seconds)
            del self.times[:kept], self.scrapes[:kept]
            self._resets = [reset for reset in self._resets if reset.before.at >= self.times[0]]

    def mark_stale(self) -> None:
        """End the present value until the next scrape. Prometheus writes such a mark when a scrape fails."""
        self._is_stale = True

    def find_newest(self, now: float) -> Sample | None:
        """Return the sample that an instant query sees."""
        return None if self._is_stale else self.find_last(now, LOOKBACK_SECONDS)

    def find_last(self, now: float, window: float) -> Sample | None:
        """Return the last sample in a window, as `last_over_time` does, in spite of marks."""
        return self.scrapes[-1] if self.scrapes and self.times[-1] > now - window else None

    def increases(self, end: float, window: float) -> Increases | None:
        """Return the increases of its counters in a window; None if they are unknown.

        Marks don't matter here. Between two scrapes only the window's ends move, so the rises are found once.
        """
        span = find_span(self.times, end, window)
        if span is None:
            return None
        first, last = self.scrapes[span.first], self.scrapes[span.last]
        known = self._known.get(window)
        if known is None or known.first is not first or known.last is not last:
            resets = [reset for reset in self._resets if first.at < reset.after.at <= last.at]
            known = self._known[window] = Increases(span, first, last, resets)
        known.span = span
        return known


def _has_fallen(before: Sample, after: Sample) -> bool:
    """Whether a counter is lower than before: its process has restarted."""
    return any(any(map(lt, read(after), read(before))) for read in (_read_counters, *_READERS.values()))
