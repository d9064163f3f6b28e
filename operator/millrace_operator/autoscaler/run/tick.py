"""The autoscaling tick: the leader decides for every service, every few seconds."""

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet

import aiohttp

from millrace_operator.autoscaler.decide.decide import decide
from millrace_operator.autoscaler.decide.decision import Decision
from millrace_operator.autoscaler.decide.evidence import gather_evidence
from millrace_operator.autoscaler.decide.memory import Memory
from millrace_operator.autoscaler.decide.policy import Policy
from millrace_operator.autoscaler.decide.prior import note_present
from millrace_operator.autoscaler.run.advice import render_advice
from millrace_operator.autoscaler.run.fleet import is_at_rest, list_started, read_fleet
from millrace_operator.autoscaler.run.prometheus import Prometheus, fetch_reading
from millrace_operator.autoscaler.run.service_policy import read_policy
from millrace_operator.autoscaler.run.settings import Access, ScalingSettings
from millrace_operator.autoscaler.signals.answers import (
    ARRIVALS,
    WAITING_AT_GATEWAYS,
    PodKey,
    Reading,
    add_gateways,
)
from millrace_operator.autoscaler.signals.observation import Signals
from millrace_operator.autoscaler.signals.queries import Scope, build_questions
from millrace_operator.autoscaler.signals.reading import list_sightings, read_signals
from millrace_operator.autoscaler.signals.scrapes import (
    DEFAULT_WINDOWS,
    NEVER_SEEN,
    Sightings,
    Windows,
    fit_windows,
)
from millrace_operator.controller.cache import Cache
from millrace_operator.kube.kinds import ServiceKey
from millrace_operator.observed.snapshot import Advice

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Considered:
    """A decision for a service, its inputs, and its time in seconds since 1970."""

    decision: Decision
    signals: Signals
    memory: Memory
    """After the decision."""
    advice: Advice
    at: float


BEGIN_SECONDS = 2.0
TURN_SECONDS = 0.02
"""After so long the loop yields to other tasks, as the Lease: 2,000 decisions take more than a second."""
Recall = Callable[[ServiceKey], Awaitable[Memory | None]]
ReadArrivals = Callable[[ServiceKey, float], float | None]
"""Returns the requests a second that gateways received for a service in the last seconds."""
CountWaiting = Callable[[ServiceKey], int]
"""Returns the requests of a service that wait in gateways until replicas have room."""


async def start_fresh(_: ServiceKey) -> Memory:
    """Return a fresh memory, without any prior."""
    return Memory()


class ScalingLoop:
    """Owner of each service's memory and last decision. It calls `on_change` when a decision has changed.

    It calls `recall` once a service for the memory to start with. While that returns None, it does not
    decide.
    """

    def __init__(
        self,
        cache: Cache,
        settings: ScalingSettings,
        on_change: Callable[[ServiceKey], None],
        is_leader: Callable[[], bool],
        clock: Callable[[], float] = time.time,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        recall: Recall = start_fresh,
        arrivals: ReadArrivals = lambda *_: None,
        count_waiting: CountWaiting = lambda _: 0,
    ) -> None:
        self._cache = cache
        self._settings = settings
        self._on_change = on_change
        self._is_leader = is_leader
        self._clock = clock
        self._monotonic = monotonic
        self._recall = recall
        self._arrivals = arrivals
        self._count_waiting = count_waiting
        self._access = Access(settings.prometheus)
        self._memories: dict[ServiceKey, Memory] = {}
        self._sightings: dict[ServiceKey, Sightings] = {}
        self.considered: dict[ServiceKey, Considered] = {}
        self._uids: dict[ServiceKey, str | None] = {}
        """Of the services in the dictionaries above."""

    def advice(self, key: ServiceKey) -> Advice | None:
        """Return the last advice for a service; None before the first of this leadership."""
        considered = self.find_considered(key)
        return considered.advice if considered else None

    def find_considered(self, key: ServiceKey) -> Considered | None:
        """Return the last decision for a service, but not one for an earlier service of the same name."""
        is_another = self._uids.get(key) != self._cache.service_uid(key)
        return None if is_another else self.considered.get(key)

    async def run(self) -> None:
        """Tick until cancelled."""
        async with aiohttp.ClientSession() as session:
            while True:
                started = time.monotonic()
                if self._is_leader():
                    await self._tick_safely(session)
                else:
                    self._forget_all_but(frozenset())
                await asyncio.sleep(max(0.1, self._settings.tick_seconds - (time.monotonic() - started)))

    async def _tick_safely(self, session: aiohttp.ClientSession) -> None:
        try:
            await self.tick(session)
        except Exception:  # the next tick may succeed
            LOG.exception("this tick has made no decisions")

    async def tick(self, session: aiohttp.ClientSession) -> None:
        """Decide for every service, except at rest, in mode External, and with an unreadable spec.

        Services with the same windows share their queries. No group waits for another's answers.
        """
        policies = dict(self._read_policies())
        self._forget_all_but(policies.keys())
        await self._begin_all(policies.keys() - self._memories.keys())
        policies = {key: policy for key, policy in policies.items() if key in self._memories}
        for key in [key for key in policies if is_at_rest(self._cache.service(key))]:
            del policies[key]  # at rest there is no replica to learn from, and a request wakes the service
            self.considered.pop(key, None)
        prometheus, groups = Prometheus(session, self._access), _group_by_windows(policies)
        await asyncio.gather(*(self._consider_group(group, prometheus) for group in groups))

    async def _begin_all(self, keys: AbstractSet[ServiceKey]) -> None:
        """Start with these services. A slow one starts in a later tick, so the others go on."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BEGIN_SECONDS):
                await asyncio.gather(*(self._begin(key) for key in keys))

    async def _begin(self, key: ServiceKey) -> None:
        """Recall a service's memory, and note its Ready pods. Raises nothing."""
        try:
            memory = await self._recall(key)
        except Exception:  # the service starts without a prior
            LOG.exception("%s: the leader cannot recall the learned model of earlier leaders", key)
            memory = Memory()
        if memory is not None:
            started = list_started(self._cache.pods(key))
            self._memories[key] = note_present(memory, started, self._monotonic())

    async def _consider_group(self, policies: Mapping[ServiceKey, Policy], prometheus: Prometheus) -> None:
        """Query for services with the same windows, and decide for each. Raises nothing."""
        now, windows = self._clock(), next(iter(policies.values())).windows
        try:
            reading = await self._fetch(policies, prometheus, now, windows)
        except Exception as error:
            LOG.exception("the operator cannot read the answer of Prometheus")
            reading = Reading(now, windows, failure=f"the answer of Prometheus cannot be read: {error!r}")
        yields_at = time.monotonic() + TURN_SECONDS
        for key, policy in policies.items():
            if time.monotonic() >= yields_at:
                await asyncio.sleep(0)
                yields_at = time.monotonic() + TURN_SECONDS
            try:
                self._consider(key, policy, reading)
            except Exception:  # a failure of one service must not stop the others
                LOG.exception("no decision for %s", key)
                self.considered.pop(key, None)  # an old decision does not know the present count

    async def _fetch(
        self, policies: Mapping[ServiceKey, Policy], prometheus: Prometheus, now: float, windows: Windows
    ) -> Reading:
        objectives = [objective for policy in policies.values() for objective in policy.objectives]
        scope = Scope(tuple({key.namespace for key in policies}), self._settings.prometheus.matchers)
        owners = {
            PodKey(key.namespace, pod["metadata"]["name"]): key
            for key in policies
            for pod in self._cache.pods(key)
        }
        questions = build_questions(objectives, windows, scope)
        reading = await fetch_reading(prometheus, questions, owners, now, windows)
        return add_gateways(reading, {key: self._ask_gateways(key, windows) for key in policies})

    def _ask_gateways(self, key: ServiceKey, windows: Windows) -> dict[str, float]:
        spans = dict(zip(ARRIVALS, (windows.rate, windows.recent), strict=True))
        found = {name: self._arrivals(key, seconds) for name, seconds in spans.items()}
        known = {name: rate for name, rate in found.items() if rate is not None}
        waiting = self._count_waiting(key)
        return {**known, WAITING_AT_GATEWAYS: waiting} if waiting else known

    def _read_policies(self) -> Iterator[tuple[ServiceKey, Policy]]:
        for key in self._cache.scaled_keys():
            try:
                yield key, read_policy(self._cache.spec(key), self._settings, self._fit_windows(key))
            except ValueError:
                continue  # the planner reports the error in status

    def _fit_windows(self, key: ServiceKey) -> Windows:
        """Return a service's windows, by the scrape interval of its replicas so far."""
        memory = self._memories.get(key)
        return fit_windows(memory.cadence.interval_seconds) if memory else DEFAULT_WINDOWS

    def _forget_all_but(self, keys: AbstractSet[ServiceKey]) -> None:
        """Forget memories and decisions of all services but these. A recreated service counts as another."""
        uids = {key: self._cache.service_uid(key) for key in keys}
        for gone in [key for key, uid in self._uids.items() if key not in uids or uids[key] != uid]:
            for known in (self._memories, self._sightings, self.considered):
                known.pop(gone, None)
        self._uids = uids

    def _consider(self, key: ServiceKey, policy: Policy, reading: Reading) -> None:
        signals = self._observe(key, policy, reading)
        decision, self._memories[key] = decide(policy, signals, self._memories[key], self._monotonic())
        evidence = gather_evidence(policy, decision, signals, self._memories[key], reading.at)
        advice, before = render_advice(decision, signals, evidence), self.advice(key)
        self.considered[key] = Considered(decision, signals, self._memories[key], advice, reading.at)
        if before is None or _has_changed(before, advice):
            self._on_change(key)

    def _observe(self, key: ServiceKey, policy: Policy, reading: Reading) -> Signals:
        fleet = read_fleet(self._cache.service(key), self._cache.pods(key), reading.at)
        before = self._sightings.get(key, NEVER_SEEN)
        self._sightings[key] = before.observe(list_sightings(reading, key), fleet.revisions)
        return read_signals(reading, key, fleet, policy.objectives, before)


def _group_by_windows(policies: Mapping[ServiceKey, Policy]) -> list[dict[ServiceKey, Policy]]:
    groups: dict[Windows, dict[ServiceKey, Policy]] = {}
    for key, policy in policies.items():
        groups.setdefault(policy.windows, {})[key] = policy
    return list(groups.values())


def _has_changed(before: Advice, after: Advice) -> bool:
    fields = (
        "desired",
        "made_from",
        "reason",
        "binding",
        "is_held",
        "are_objectives_met",
        "objectives_message",
    )
    return any(getattr(before, field) != getattr(after, field) for field in fields)
