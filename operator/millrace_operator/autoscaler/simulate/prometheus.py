"""A Prometheus in virtual time: it scrapes replicas and gateway, and answers the questions of `queries`.

So the autoscaler sees the same as with a real one: samples of some age, rates over windows, quantiles of
buckets, and nothing after the last scrape.
"""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from millrace_operator.autoscaler.decide.policy import Objective
from millrace_operator.autoscaler.signals.answers import Reading, Sample
from millrace_operator.autoscaler.signals.observation import Fleet, Signals, Unplaced
from millrace_operator.autoscaler.signals.queries import (
    ANSWER_LENGTHS,
    BOUNDS,
    SPARED,
    name_buckets,
    needs_lengths,
)
from millrace_operator.autoscaler.signals.reading import list_sightings, read_signals
from millrace_operator.autoscaler.signals.scrapes import NEVER_SEEN, Windows
from millrace_operator.autoscaler.simulate.agenda import Agenda
from millrace_operator.autoscaler.simulate.batch import Counters
from millrace_operator.autoscaler.simulate.series import (
    LOOKBACK_SECONDS,
    Increases,
    Series,
    histogram_quantile,
)
from millrace_operator.autoscaler.simulate.service import Pod, Service
from millrace_operator.kube.kinds import ServiceKey
from millrace_runtime.contract import ANSWER_BUCKETS

LEAST_KEPT_SECONDS = 120.0
SCRAPES_KEPT = 8
"""The least number of scrapes kept of a target: more than any window holds."""
SCRAPES_BEYOND = 2
"""Scrapes kept beyond a window."""
KEY = ServiceKey("simulated", "service")
FULL = "the cluster is full"
GATEWAY = "gateway"
_STEP_MEANS = ("step_seconds", "step_sequences", "step_tokens", "step_context", *SPARED)


def never(*_: object) -> bool:
    """Return False for any target, at any time."""
    return False


@dataclass(frozen=True)
class Scraping:
    """The behaviour of a Prometheus."""

    interval_seconds: float = 5.0
    jitter_seconds: float = 0.1
    """The largest delay of a scrape."""
    lost_share: float = 0.0
    """The part of the scrapes that fail."""
    is_unreachable: Callable[[str, float], bool] = never
    """Whether the scrapes of a target fail at a time. A target is a pod's name, or GATEWAY."""
    is_down: Callable[[float], bool] = never
    """Whether it neither scrapes nor answers at a time. It keeps its samples over that time."""


class Prometheus:
    """Keeps a few minutes of samples of one service, and answers from them."""

    def __init__(
        self, agenda: Agenda, service: Service, scraping: Scraping, seed: int, longest_window: float = 0.0
    ) -> None:
        self._agenda = agenda
        self._service = service
        self._scraping = scraping
        self._rng = random.Random(seed)  # noqa: S311  a simulation
        self._jitter_rng = random.Random(seed + 1)  # noqa: S311  a simulation
        asked = longest_window + SCRAPES_BEYOND * scraping.interval_seconds
        self._keep_seconds = max(LEAST_KEPT_SECONDS, SCRAPES_KEPT * scraping.interval_seconds, asked)
        self._gateway = Series(self._keep_seconds)
        self._targets: dict[Pod, Series] = {}
        self._sightings = NEVER_SEEN
        self._repeat(self._scrape_gateway)
        self._find_targets()
        service.on_ready = self._find_targets

    def observe(self, objectives: Sequence[Objective], windows: Windows) -> Signals:
        """Return the signals that the operator would see now, with the pods of the API server.

        Like the operator it remembers when each replica was seen last.
        """
        self._forget_targets()
        now, pods = self._agenda.now, self._service.active
        if not self._is_up():
            reading = Reading(now, windows, failure="Prometheus did not answer")
        else:
            found = dict(self._query(objectives, windows))
            reading = Reading(now, windows, {KEY: found} if self._targets else {})
        starts = {pod.name: pod.ready_at - pod.created_at for pod in pods if pod.ready_at is not None}
        revisions = {pod.name: pod.revision for pod in pods}
        unplaced = {pod.name: Unplaced(now - pod.created_at, FULL) for pod in pods if pod.node is None}
        fleet = Fleet(revisions, frozenset(starts), starts, unplaced, desired=self._service.desired)
        before, self._sightings = (
            self._sightings,
            self._sightings.observe(list_sightings(reading, KEY), revisions),
        )
        return read_signals(reading, KEY, fleet, objectives, before)

    def _find_targets(self) -> None:
        """Begin to scrape the pods that are Ready now."""
        for pod in self._service.ready:
            if pod not in self._targets:
                self._targets[pod] = Series(self._keep_seconds)
                self._repeat(lambda pod=pod: self._scrape(pod))  # type: ignore[misc]

    def _forget_targets(self) -> None:
        """Forget pods that ended a while ago."""
        horizon = self._agenda.now - max(self._keep_seconds, LOOKBACK_SECONDS)
        for pod, series in list(self._targets.items()):
            if pod not in self._service.pods and not (series.times and series.times[-1] > horizon):
                del self._targets[pod]

    def _repeat(self, scrape: Callable[[], bool]) -> None:
        """Scrape at each interval, with its own phase, until the target is gone."""
        interval, jitter = self._scraping.interval_seconds, self._scraping.jitter_seconds
        due = self._agenda.now + self._rng.random() * interval

        def act() -> None:
            nonlocal due
            if scrape():
                due += interval
                self._agenda.add(due + jitter * self._jitter_rng.random(), act)

        self._agenda.add(due, act)

    def _scrape_gateway(self) -> bool:
        if self._is_up() and not self._has_failed(GATEWAY, self._gateway):
            arrived = Counters(received=self._service.num_arrived)
            self._gateway.add(arrived.sample(self._agenda.now, 0, 0, 0.0))
        return True

    def _scrape(self, pod: Pod) -> bool:
        """Scrape a pod. The series of a gone pod end with a mark, if Prometheus is up to write it."""
        series, is_there = self._targets.get(pod), pod in self._service.pods
        if series is None:
            return False  # the pod was gone before its first scrape
        if not self._is_up():
            return is_there
        if not is_there or pod.ready_at is None:
            series.mark_stale()
        elif not self._has_failed(pod.name, series):
            series.add(pod.engine.sample())
        return is_there

    def _is_up(self) -> bool:
        return not self._scraping.is_down(self._agenda.now)

    def _has_failed(self, target: str, series: Series) -> bool:
        """Whether a scrape fails; if so, mark it."""
        is_lost = self._rng.random() < self._scraping.lost_share
        if is_lost or self._scraping.is_unreachable(target, self._agenda.now):
            series.mark_stale()
            return True
        return False

    def _query(self, objectives: Sequence[Objective], windows: Windows) -> Iterator[tuple[str, list[Sample]]]:
        """Yield each signal's name and samples."""
        yield from self._list_gauges(windows.max_age)
        recent, rises = self._rises(windows.recent), self._rises(windows.rate)
        yield from self._list_arrivals("", windows.rate, rises)
        yield from self._list_arrivals("recent_", windows.recent, recent)
        yield from _list_steps(recent)
        finished = sum(rise.of("finished") for rise in rises.values())
        for name in ("prompt_tokens", "generation_tokens"):
            if finished:
                yield name, [_whole(sum(rise.of(name) for rise in rises.values()) / finished)]
        if needs_lengths(objectives):
            yield (
                ANSWER_LENGTHS,
                list(_cumulate(ANSWER_BUCKETS, _add_up(ANSWER_LENGTHS, ANSWER_BUCKETS, rises))),
            )
        if windows.latency != windows.rate:
            rises = self._rises(windows.latency)
        for objective in objectives:
            yield from _list_latency(objective, rises)

    def _rises(self, window: float) -> dict[Pod, Increases]:
        found = {pod: series.increases(self._agenda.now, window) for pod, series in self._targets.items()}
        return {pod: rise for pod, rise in found.items() if rise is not None}

    def _list_gauges(self, fresh: float) -> Iterator[tuple[str, list[Sample]]]:
        """Yield when each pod was scraped, and its last values within `fresh` seconds."""
        now = self._agenda.now
        newest = [(pod, series.find_newest(now)) for pod, series in self._targets.items()]
        yield "age", [_of_pod(pod.name, scrape.at) for pod, scrape in newest if scrape is not None]
        last = [(pod, series.find_last(now, fresh)) for pod, series in self._targets.items()]
        found = [(pod, scrape) for pod, scrape in last if scrape is not None]
        yield "running", [_of_pod(pod.name, scrape.running) for pod, scrape in found]
        yield "waiting", [_of_pod(pod.name, scrape.waiting) for pod, scrape in found]
        yield "kv_usage", [_of_pod(pod.name, scrape.kv_usage) for pod, scrape in found]
        yield "max_sequences", [_of_pod(pod.name, pod.hardware.max_sequences) for pod, _ in found]
        yield "kv_tokens", [_of_pod(pod.name, pod.hardware.kv_tokens) for pod, _ in found]
        yield "trial_steps", [sample for pod, _ in found for sample in _list_trials(pod)]

    def _list_arrivals(
        self, prefix: str, window: float, rises: dict[Pod, Increases]
    ) -> Iterator[tuple[str, list[Sample]]]:
        if (gateway := self._gateway.increases(self._agenda.now, window)) is not None:
            yield f"{prefix}arrivals", [_whole(gateway.of("received") / window)]
        if rises:
            received = sum(rise.of("received") for rise in rises.values())
            yield f"{prefix}received", [_whole(received / window)]


def _list_steps(rises: dict[Pod, Increases]) -> Iterator[tuple[str, list[Sample]]]:
    counts = {pod: rise.of("steps") for pod, rise in rises.items()}
    stepped = {pod: count for pod, count in counts.items() if count > 0}
    yield "num_steps", [_of_pod(pod.name, count) for pod, count in stepped.items()]
    for name in _STEP_MEANS:
        yield name, [_of_pod(pod.name, rises[pod].of(name) / count) for pod, count in stepped.items()]


def _list_latency(objective: Objective, rises: dict[Pod, Increases]) -> Iterator[tuple[str, list[Sample]]]:
    bounds = BOUNDS[objective.metric]
    counts = _add_up(objective.metric, bounds, rises)
    seconds = histogram_quantile(objective.percentile / 100, bounds, counts)
    if seconds is not None:
        yield objective.name, [_whole(seconds)]
    if rises:
        yield name_buckets(objective.metric), list(_cumulate(bounds, counts))


def _add_up(histogram: str, bounds: Sequence[float], rises: dict[Pod, Increases]) -> list[float]:
    """Return the counts of each bucket, over all pods; the last one is +Inf."""
    counts = [0.0] * (len(bounds) + 1)
    for rise in rises.values():
        rise.add_buckets(histogram, counts)
    return counts


def _cumulate(bounds: Iterable[float], counts: Iterable[float]) -> Iterator[Sample]:
    """Yield the requests at or under each bound."""
    for bound, count in zip((*bounds, math.inf), accumulate(counts), strict=True):
        yield Sample({"le": str(bound)}, count)


def _list_trials(pod: Pod) -> Iterator[Sample]:
    for step in pod.engine.trial_steps:
        labels = {"pod": pod.name, "tokens": f"{step.tokens:g}", "context_tokens": f"{step.context_tokens:g}"}
        yield Sample(labels, step.seconds)


def _of_pod(name: str, value: float) -> Sample:
    return Sample({"pod": name}, value)


def _whole(value: float) -> Sample:
    return Sample({}, value)
