"""A Prometheus in virtual time: scrapes replicas and gateway, and answers what `queries` asks.

So the autoscaler sees what it would see of a real one: samples of some age, rates over windows, quantiles of
buckets, and nothing of what came since the last scrape.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from millrace_operator.autoscale.observation import Signals
from millrace_operator.autoscale.policy import Objective
from millrace_operator.autoscale.reading import Reading, Sample, read_signals
from millrace_operator.autoscale.simulate.agenda import Agenda
from millrace_operator.autoscale.simulate.counters import TOKEN_BUCKETS, Counters
from millrace_operator.autoscale.simulate.counters import Sample as Scrape
from millrace_operator.autoscale.simulate.rates import Span, find_span, histogram_quantile, increase
from millrace_operator.autoscale.simulate.service import Pod, Service
from millrace_operator.autoscale.windows import Windows
from millrace_operator.cluster.kinds import ServiceKey
from millrace_runtime.contract import LATENCY_BUCKETS

LEAST_KEPT_SECONDS = 120.0
SCRAPES_KEPT = 8
"""Of a target, at least: more than any window holds."""
KEY = ServiceKey("simulated", "service")
_COUNTER = {name: index for index, name in enumerate(Counters.NAMES)}
_STEP_MEANS = ("step_seconds", "step_sequences", "step_tokens", "step_context")


def never(_: float) -> bool:
    """Return that nothing is amiss at any time."""
    return False


@dataclass(frozen=True)
class Scraping:
    """How a Prometheus scrapes."""

    interval_seconds: float = 5.0
    lost_share: float = 0.0
    """Of the scrapes."""
    is_down: Callable[[float], bool] = never
    """Whether it neither scrapes nor answers at a time."""


class _Series:
    """The scrapes of one target over the last minutes."""

    def __init__(self, keep_seconds: float) -> None:
        self._keep_seconds = keep_seconds
        self.times: list[float] = []
        self.scrapes: list[Scrape] = []

    def add(self, scrape: Scrape) -> None:
        """Keep a scrape, and forget the oldest."""
        self.times.append(scrape.at)
        self.scrapes.append(scrape)
        if self.times[0] < scrape.at - 2 * self._keep_seconds:
            kept = next(index for index, at in enumerate(self.times) if at >= scrape.at - self._keep_seconds)
            del self.times[:kept], self.scrapes[:kept]

    def increases(self, end: float, window: float) -> "_Increases | None":
        """Return by how much its counters rose in a window; None where nothing is known."""
        span = find_span(self.times, end, window)
        return span and _Increases(span, self.scrapes[span.first], self.scrapes[span.last])


class _Increases:
    """What a target's counters rose by in a window."""

    def __init__(self, span: Span, first: Scrape, last: Scrape) -> None:
        self._span = span
        self._first = first
        self._last = last

    def of(self, name: str) -> float:
        """Return the increase of one counter."""
        index = _COUNTER[name]
        return increase(self._span, self._first.counters[index], self._last.counters[index])

    def of_buckets(self, metric: str) -> list[float]:
        """Return the increases of a latency's buckets."""
        pairs = (
            zip(self._first.first_tokens, self._last.first_tokens, strict=True)
            if metric == "TimeToFirstToken"
            else zip(self._first.output_tokens, self._last.output_tokens, strict=True)
        )
        return [increase(self._span, first, last) for first, last in pairs]


class Prometheus:
    """Keeps a few minutes of samples of one service, and says what they tell."""

    def __init__(self, agenda: Agenda, service: Service, scraping: Scraping, seed: int) -> None:
        self._agenda = agenda
        self._service = service
        self._scraping = scraping
        self._rng = random.Random(seed)  # noqa: S311  a simulation
        self._keep_seconds = max(LEAST_KEPT_SECONDS, SCRAPES_KEPT * scraping.interval_seconds)
        self._gateway = _Series(self._keep_seconds)
        self._targets: dict[Pod, _Series] = {}
        self._repeat(self._scrape_gateway)

    def observe(self, objectives: Sequence[Objective], windows: Windows) -> Signals:
        """Return what the operator sees now: of Prometheus, and of the pods in the API server."""
        self._find_targets()
        now, pods = self._agenda.now, self._service.active
        if self._scraping.is_down(now):
            reading = Reading(now, windows, failure="Prometheus did not answer")
        else:
            found = dict(self._query(objectives, windows))
            reading = Reading(now, windows, {KEY: found} if self._targets else {})
        signals = read_signals(reading, KEY, frozenset(pod.name for pod in pods), objectives)
        starts = {pod.name: pod.ready_at - pod.created_at for pod in pods if pod.ready_at is not None}
        return replace(signals, ready_replicas=len(starts), cold_starts=starts)

    def _find_targets(self) -> None:
        """Begin with pods that are Ready now, and let go of those that ended a while ago."""
        for pod in self._service.ready:
            if pod not in self._targets:
                self._targets[pod] = _Series(self._keep_seconds)
                self._repeat(lambda pod=pod: self._scrape(pod))  # type: ignore[misc]
        horizon = self._agenda.now - self._keep_seconds
        for pod, series in list(self._targets.items()):
            if pod not in self._service.pods and not (series.times and series.times[-1] > horizon):
                del self._targets[pod]

    def _repeat(self, scrape: Callable[[], bool]) -> None:
        """Scrape every interval, at a phase of its own, until its target is gone."""
        interval = self._scraping.interval_seconds

        def act() -> None:
            if scrape():
                self._agenda.add(self._agenda.now + interval, act)

        self._agenda.add(self._agenda.now + self._rng.random() * interval, act)

    def _is_lost(self) -> bool:
        return self._scraping.is_down(self._agenda.now) or self._rng.random() < self._scraping.lost_share

    def _scrape_gateway(self) -> bool:
        if not self._is_lost():
            arrived = Counters(received=self._service.num_arrived)
            self._gateway.add(arrived.sample(self._agenda.now, 0, 0, 0.0))
        return True

    def _scrape(self, pod: Pod) -> bool:
        is_there = pod in self._service.pods
        if is_there and not self._is_lost():
            self._targets[pod].add(pod.engine.sample())
        return is_there

    def _query(self, objectives: Iterable[Objective], windows: Windows) -> Iterator[tuple[str, list[Sample]]]:
        """Yield the samples of every signal, by its name."""
        yield from self._list_gauges()
        yield from self._list_arrivals("", windows.rate)
        yield from self._list_arrivals("recent_", windows.recent)
        yield from self._list_steps(windows.recent)
        rises = self._rises(windows.rate)
        finished = sum(rise.of("finished") for rise in rises.values())
        for name in ("prompt_tokens", "generation_tokens"):
            if finished:
                yield name, [_whole(sum(rise.of(name) for rise in rises.values()) / finished)]
        if windows.latency != windows.rate:
            rises = self._rises(windows.latency)
        for objective in objectives:
            yield from _list_latency(objective, rises.values())

    def _rises(self, window: float) -> dict[Pod, _Increases]:
        found = {pod: series.increases(self._agenda.now, window) for pod, series in self._targets.items()}
        return {pod: rise for pod, rise in found.items() if rise is not None}

    def _list_gauges(self) -> Iterator[tuple[str, list[Sample]]]:
        """Yield the newest values of the pods that are there."""
        newest = {
            pod.name: series.scrapes[-1]
            for pod, series in self._targets.items()
            if series.scrapes and pod in self._service.pods
        }
        yield "age", [_of_pod(name, scrape.at) for name, scrape in newest.items()]
        yield "running", [_of_pod(name, scrape.running) for name, scrape in newest.items()]
        yield "waiting", [_of_pod(name, scrape.waiting) for name, scrape in newest.items()]
        yield "kv_usage", [_of_pod(name, scrape.kv_usage) for name, scrape in newest.items()]
        hardware = self._service.hardware
        yield "max_sequences", [_of_pod(name, hardware.max_sequences) for name in newest]
        yield "kv_tokens", [_of_pod(name, hardware.kv_tokens) for name in newest]

    def _list_arrivals(self, prefix: str, window: float) -> Iterator[tuple[str, list[Sample]]]:
        if (gateway := self._gateway.increases(self._agenda.now, window)) is not None:
            yield f"{prefix}arrivals", [_whole(gateway.of("received") / window)]
        rises = self._rises(window)
        if rises:
            received = sum(rise.of("received") for rise in rises.values())
            yield f"{prefix}received", [_whole(received / window)]

    def _list_steps(self, window: float) -> Iterator[tuple[str, list[Sample]]]:
        rises = {pod.name: rise for pod, rise in self._rises(window).items() if rise.of("steps") > 0}
        yield "num_steps", [_of_pod(pod, rise.of("steps")) for pod, rise in rises.items()]
        for name in _STEP_MEANS:
            yield name, [_of_pod(pod, rise.of(name) / rise.of("steps")) for pod, rise in rises.items()]


def _list_latency(objective: Objective, rises: Iterable[_Increases]) -> Iterator[tuple[str, list[Sample]]]:
    bounds = LATENCY_BUCKETS if objective.metric == "TimeToFirstToken" else TOKEN_BUCKETS
    buckets = [rise.of_buckets(objective.metric) for rise in rises]
    counts = [sum(column) for column in zip(*buckets, strict=True)]
    seconds = histogram_quantile(objective.percentile / 100, bounds, counts)
    if seconds is not None:
        yield objective.name, [_whole(seconds)]
        yield f"{objective.name} samples", [_whole(sum(counts))]


def _of_pod(name: str, value: float) -> Sample:
    return Sample({"pod": name}, value)


def _whole(value: float) -> Sample:
    return Sample({}, value)
