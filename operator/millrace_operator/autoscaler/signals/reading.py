"""Reads one service's signals from the answers. An absent value is unknown, not zero. Pure."""

import math
from collections.abc import Iterable
from contextlib import suppress

from millrace_operator.autoscaler.decide.policy import Objective
from millrace_operator.autoscaler.signals.answers import ARRIVALS, WAITING_AT_GATEWAYS, Reading, Sample
from millrace_operator.autoscaler.signals.lengths import read_lengths
from millrace_operator.autoscaler.signals.observation import (
    Bracket,
    Fleet,
    Latency,
    Signals,
    StepMoments,
    TrialStep,
)
from millrace_operator.autoscaler.signals.queries import (
    ANSWER_LENGTHS,
    SPARED,
    find_bounds,
    name_buckets,
    needs_lengths,
)
from millrace_operator.autoscaler.signals.scrapes import (
    NEVER_SEEN,
    Sighting,
    Sightings,
)
from millrace_operator.kube.kinds import ServiceKey

EVERYTHING = "every signal"
"""The key of `Signals.rejected` if no signal is known."""
OF_GATEWAYS = frozenset({*ARRIVALS, WAITING_AT_GATEWAYS})
NO_SERIES = "Prometheus has no series of this service"
NO_SAMPLES = "no samples"
"""The beginning of the reason for a signal without samples in the answer."""


def list_sightings(reading: Reading, service: ServiceKey) -> list[Sighting]:
    """Return when each source scraped each replica of a service last."""
    samples = reading.series.get(service, {}).get("age", [])
    return [Sighting(sample.pod, sample.source, sample.value) for sample in samples]


class _Reader:
    """Turns one service's series into values and keeps the reason for each that is unknown."""

    def __init__(self, reading: Reading, service: ServiceKey) -> None:
        self._series = reading.series.get(service, {})
        self._unknown = reading.unknown
        self.rejected: dict[str, str] = {}

    def by_pod(self, name: str, pods: frozenset[str]) -> dict[str, float]:
        """Return the values of the given pods."""
        return {sample.pod: sample.value for sample in self._answer(name) if sample.pod in pods}

    def scalar(self, name: str) -> float | None:
        """Return the one value, or None."""
        answer = self._answer(name)
        return answer[0].value if answer else None

    def count(self, name: str) -> float:
        """Return the one value of a count; 0 without a series: it has counted nothing."""
        answer = self._series.get(name, [])
        return answer[0].value if answer else 0.0

    def by_bound(self, name: str) -> dict[float, float]:
        """Return the counts at or under each bound of a histogram."""
        found = {}
        for sample in self._answer(name):
            with suppress(ValueError):  # our bounds are numbers
                found[float(sample.labels.get("le", ""))] = sample.value
        return found

    def list_trials(self, pods: frozenset[str]) -> dict[str, tuple[TrialStep, ...]]:
        """Return the steps that each of these pods tried. Slow models and older versions try none."""
        found: dict[str, tuple[TrialStep, ...]] = {}
        for sample in self._series.get("trial_steps", []):
            with suppress(ValueError):  # our labels are numbers
                tokens, context = (
                    float(sample.labels.get(name, "")) for name in ("tokens", "context_tokens")
                )
                if sample.pod in pods:
                    found[sample.pod] = (*found.get(sample.pod, ()), TrialStep(sample.value, tokens, context))
        return found

    def is_answered(self, name: str) -> bool:
        """Whether the question for a signal has an answer, even an empty one."""
        return name not in self._unknown

    def _answer(self, name: str) -> list[Sample]:
        answer = self._series.get(name, [])
        if not answer and name not in SPARED:
            self.rejected[name] = self._unknown.get(name, NO_SAMPLES)
        return answer


def read_signals(
    reading: Reading,
    service: ServiceKey,
    fleet: Fleet,
    objectives: Iterable[Objective] = (),
    before: Sightings = NEVER_SEEN,
) -> Signals:
    """Return one service's signals from a reading; `before` has the earlier sightings of its replicas.

    Series of pods outside the fleet are ignored. A pod with too old samples counts as not reporting.
    """
    if reading.failure is not None:
        return Signals(fleet, rejected={EVERYTHING: reading.failure})
    known = reading.series.get(service, {}).keys()
    if not (known - OF_GATEWAYS if fleet.ready else known) and reading.unknown.keys() <= OF_GATEWAYS:
        return Signals(fleet, rejected={EVERYTHING: NO_SERIES})
    reader, max_age, objectives = _Reader(reading, service), reading.windows.max_age, tuple(objectives)
    sightings = before.observe(list_sightings(reading, service), fleet.revisions)
    fresh = _find_fresh(reader, reading.at - max_age, sightings)
    if silent := fleet.ready - fresh:
        reader.rejected.setdefault("age", sightings.describe(silent, max_age))
    running, waiting = (reader.by_pod(name, fresh) for name in ("running", "waiting"))
    fresh = fresh.intersection(running, waiting) if running and waiting else fresh
    usage = reader.by_pod("kv_usage", fresh)
    latencies = tuple(_read_latencies(reader, objectives))
    is_load_known = bool(fresh) or not fleet.ready  # with none Ready only the gateway knows
    unanswered = {each.name for each in objectives if not reader.is_answered(each.name)}
    return Signals(
        fleet=fleet,
        reporting=fresh,
        arrivals_per_second=_read_arrivals(reader, "") if is_load_known else None,
        recent_arrivals_per_second=_read_arrivals(reader, "recent_") if is_load_known else None,
        waiting=sum(waiting.values()) + reader.count(WAITING_AT_GATEWAYS) if waiting else None,
        running=sum(running.values()) if running else None,
        in_flight={pod: count + waiting.get(pod, 0.0) for pod, count in running.items()},
        kv_usage=sum(usage.values()) / len(usage) if usage else None,
        prompt_tokens=reader.scalar("prompt_tokens"),
        generation_tokens=reader.scalar("generation_tokens"),
        answer_lengths=read_lengths(reader.by_bound(ANSWER_LENGTHS)) if needs_lengths(objectives) else None,
        max_sequences=min(reader.by_pod("max_sequences", fresh).values(), default=None),
        kv_tokens=min(reader.by_pod("kv_tokens", fresh).values(), default=None),
        latencies=latencies,
        unanswered=frozenset(unanswered | _find_unmeasured(reader, objectives)),
        steps=tuple(_read_steps(reader, fresh)),
        trial_steps=reader.list_trials(fresh & fleet.ready),
        sampled_at=sightings.by_one_source(max_age),
        rejected=reader.rejected | {x.objective.name: x.doubt for x in latencies if x.doubt},
    )


def _find_fresh(reader: _Reader, oldest: float, sightings: Sightings) -> frozenset[str]:
    """Return the pods with samples newer than `oldest`, if the question about pods has an answer."""
    if not reader.is_answered("age"):
        reader.by_pod("age", frozenset())
        return frozenset()
    return frozenset(pod for pod, at in sightings.newest.items() if at > oldest)


def _read_arrivals(reader: _Reader, prefix: str) -> float | None:
    """Return sequences a second: the larger one of the gateway's and the replicas' counts.

    Neither sees all. Only replicas count requests that bypass the gateway, and each choice of a request. Only
    the gateway counts requests while no replica is ready.
    """
    gateway, received = reader.scalar(f"{prefix}arrivals"), reader.scalar(f"{prefix}received")
    known = [] if gateway is None else [gateway]
    if received is not None:
        known.append(max(received - reader.count(f"{prefix}refused"), 0.0))
    return max(known, default=None)


def _read_steps(reader: _Reader, fresh: frozenset[str]) -> Iterable[StepMoments]:
    names = ("step_seconds", "step_sequences", "step_tokens", "step_context", "num_steps")
    columns = [reader.by_pod(name, fresh) for name in names]
    spared = [reader.by_pod(name, fresh) for name in SPARED]
    for pod in sorted(set.intersection(*map(set, columns))):
        yield StepMoments(pod, *(of[pod] for of in columns), *(of.get(pod, 0.0) for of in spared))


def _read_latencies(reader: _Reader, objectives: Iterable[Objective]) -> Iterable[Latency]:
    for objective in objectives:
        seconds, counts = reader.scalar(objective.name), reader.by_bound(name_buckets(objective.metric))
        total = counts.get(math.inf)
        if seconds is not None and total:
            bracket = Bracket.read(counts, total, *find_bounds(objective))
            is_of_all = bracket is not None and bracket.agrees(seconds, objective.percentile / 100)
            yield Latency(objective, seconds, total, bracket if is_of_all else None)


def _find_unmeasured(reader: _Reader, objectives: Iterable[Objective]) -> set[str]:
    """Name the objectives whose latencies replicas of another version do not export, in spite of answers."""
    if reader.scalar("generation_tokens") is None:
        return set()
    found = {each.name for each in objectives if math.inf not in reader.by_bound(name_buckets(each.metric))}
    reader.rejected |= {
        name: "replicas answered requests, and do not export it" for name in found if reader.is_answered(name)
    }
    return found
