"""What Prometheus answered, and what it says of one service: never zero because it is absent. Pure."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from millrace_operator.autoscale.observation import Latency, Signals, StepMoments
from millrace_operator.autoscale.policy import Objective
from millrace_operator.autoscale.queries import LABEL_SIGNAL
from millrace_operator.autoscale.windows import DEFAULT_WINDOWS, Windows
from millrace_operator.cluster.kinds import ServiceKey

EVERYTHING = "every signal"
"""The key of `Signals.rejected` where nothing at all is known."""


class SignalError(Exception):
    """An answer that cannot be used; the text is the reason."""


class Sample(NamedTuple):
    """One series of an instant query."""

    labels: dict[str, str]
    value: float

    @property
    def service(self) -> ServiceKey:
        """The service it speaks of, however the scrape named those labels."""
        names = ("namespace", "service")
        namespace, name = (self.labels.get(f"exported_{n}") or self.labels.get(n, "") for n in names)
        return ServiceKey(namespace, name)


@dataclass(frozen=True)
class Reading:
    """One answer for all services."""

    at: float
    """When, in seconds since 1970."""
    windows: Windows = DEFAULT_WINDOWS
    series: Mapping[ServiceKey, Mapping[str, list[Sample]]] = field(default_factory=dict)
    """By service and signal; finite values only."""
    failure: str | None = None
    """Why there is no answer."""


def parse_samples(body: Any) -> list[Sample]:
    """Return the finite samples of an instant query's answer; raises SignalError when it is none."""
    if not isinstance(body, dict) or body.get("status") != "success":
        reason = body.get("error", "no reason given") if isinstance(body, dict) else "not a JSON object"
        raise SignalError(f"Prometheus refused the query: {reason}")
    try:
        series = [Sample(item["metric"], float(item["value"][1])) for item in body["data"]["result"]]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise SignalError(f"Prometheus answered in an unknown shape: {error!r}") from error
    return [sample for sample in series if math.isfinite(sample.value)]


def sort_samples(samples: Iterable[Sample]) -> dict[ServiceKey, dict[str, list[Sample]]]:
    """Return the samples by service and signal."""
    found: dict[ServiceKey, dict[str, list[Sample]]] = {}
    for sample in samples:
        signals = found.setdefault(sample.service, {})
        signals.setdefault(sample.labels.get(LABEL_SIGNAL, ""), []).append(sample)
    return found


class _Reader:
    """Turns one service's series into values and keeps the reason for each that is unknown."""

    def __init__(self, series: Mapping[str, list[Sample]]) -> None:
        self._series = series
        self.rejected: dict[str, str] = {}

    def by_pod(self, name: str, pods: frozenset[str]) -> dict[str, float]:
        """Values of the given pods."""
        values = {sample.labels.get("pod", ""): sample.value for sample in self._answer(name)}
        return {pod: value for pod, value in values.items() if pod in pods}

    def scalar(self, name: str) -> float | None:
        """The one value, or None."""
        answer = self._answer(name)
        return answer[0].value if answer else None

    def count(self, name: str) -> float:
        """The one value of a counter that has no series before it first counts."""
        answer = self._series.get(name, [])
        return answer[0].value if answer else 0.0

    def _answer(self, name: str) -> list[Sample]:
        answer = self._series.get(name, [])
        if not answer:
            self.rejected[name] = "no samples"
        return answer


def read_signals(
    reading: Reading, service: ServiceKey, pods: frozenset[str], objectives: Iterable[Objective] = ()
) -> Signals:
    """Return what a reading says of one service.

    `pods` are those that exist in the API: series of others are ignored, and pods with samples too old
    count as not reporting. `ready_replicas` is the number that report; a caller who knows replaces it.
    """
    if reading.failure is not None:
        return Signals(len(pods), 0, rejected={EVERYTHING: reading.failure})
    if service not in reading.series:
        return Signals(len(pods), 0, rejected={EVERYTHING: "Prometheus has no series of this service"})
    reader = _Reader(reading.series[service])
    fresh = _find_fresh(reader, reading, pods)
    running, waiting = (reader.by_pod(name, fresh) for name in ("running", "waiting"))
    usage = reader.by_pod("kv_usage", fresh)
    return Signals(
        replicas=len(pods),
        ready_replicas=len(fresh),
        reporting_replicas=len(fresh),
        arrivals_per_second=_read_arrivals(reader, "") if fresh else None,
        recent_arrivals_per_second=_read_arrivals(reader, "recent_") if fresh else None,
        waiting=sum(waiting.values()) if waiting else None,
        running=sum(running.values()) if running else None,
        in_flight={pod: count + waiting.get(pod, 0.0) for pod, count in running.items()},
        kv_usage=sum(usage.values()) / len(usage) if usage else None,
        prompt_tokens=reader.scalar("prompt_tokens"),
        generation_tokens=reader.scalar("generation_tokens"),
        max_sequences=min(reader.by_pod("max_sequences", fresh).values(), default=None),
        kv_tokens=min(reader.by_pod("kv_tokens", fresh).values(), default=None),
        latencies=tuple(_read_latencies(reader, objectives)),
        steps=tuple(_read_steps(reader, fresh)),
        pods=fresh,
        sampled_at=reader.by_pod("age", pods),
        rejected=reader.rejected,
    )


def _find_fresh(reader: _Reader, reading: Reading, pods: frozenset[str]) -> frozenset[str]:
    times, oldest = reader.by_pod("age", pods), reading.at - reading.windows.max_age
    fresh = frozenset(pod for pod, at in times.items() if at >= oldest)
    if len(fresh) < len(times):
        stale = len(times) - len(fresh)
        reader.rejected["age"] = f"{stale} replicas have samples older than {reading.windows.max_age:g} s"
    return fresh


def _read_arrivals(reader: _Reader, prefix: str) -> float | None:
    """Sequences a second: the larger of what the gateway and what the replicas saw arrive.

    Neither sees all. What comes past the gateway, or through one that is not scraped, only replicas count,
    and the choices of a request too. What no replica was ready for only the gateway counts.
    """
    gateway, received = reader.scalar(f"{prefix}arrivals"), reader.scalar(f"{prefix}received")
    known = [] if gateway is None else [gateway]
    if received is not None:
        known.append(max(received - reader.count(f"{prefix}refused"), 0.0))
    return max(known, default=None)


def _read_steps(reader: _Reader, fresh: frozenset[str]) -> Iterable[StepMoments]:
    names = ("step_seconds", "step_sequences", "step_tokens", "step_context", "num_steps")
    columns = [reader.by_pod(name, fresh) for name in names]
    for pod in sorted(set.intersection(*(set(column) for column in columns))):
        yield StepMoments(pod, *(column[pod] for column in columns))


def _read_latencies(reader: _Reader, objectives: Iterable[Objective]) -> Iterable[Latency]:
    for objective in objectives:
        seconds = reader.scalar(objective.name)
        count = reader.scalar(f"{objective.name} samples")
        if seconds is not None and count is not None:
            yield Latency(objective, seconds, count)
