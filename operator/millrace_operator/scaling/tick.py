"""The autoscaling tick: every service, every few seconds, on the leader alone."""

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import aiohttp

from millrace_operator.autoscale.decide import decide
from millrace_operator.autoscale.decision import Decision
from millrace_operator.autoscale.memory import Memory
from millrace_operator.autoscale.observation import Signals
from millrace_operator.autoscale.policy import Policy
from millrace_operator.autoscale.reading import Reading, read_signals
from millrace_operator.autoscale.windows import DEFAULT_WINDOWS, Windows, fit_windows
from millrace_operator.cluster.kinds import ServiceKey
from millrace_operator.ingest.cache import Cache
from millrace_operator.reconcile.pods import read_pod
from millrace_operator.reconcile.snapshot import Advice
from millrace_operator.resources.types import ScalingMode, Spec
from millrace_operator.scaling.advisor import read_policy, render_advice
from millrace_operator.scaling.settings import ScalingSettings
from millrace_operator.scaling.signals import fetch_reading

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Considered:
    """A decision for a service, what it rests on, and when it was made, in seconds since 1970."""

    decision: Decision
    signals: Signals
    memory: Memory
    """As it is after the decision."""
    advice: Advice
    at: float


class ScalingLoop:
    """Owner of each service's memory and last decision. Calls `on_change` when a decision is another."""

    def __init__(
        self,
        cache: Cache,
        settings: ScalingSettings,
        on_change: Callable[[ServiceKey], None],
        is_leader: Callable[[], bool],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._cache = cache
        self._settings = settings
        self._on_change = on_change
        self._is_leader = is_leader
        self._clock = clock
        self._memories: dict[ServiceKey, Memory] = {}
        self.considered: dict[ServiceKey, Considered] = {}

    def advice(self, key: ServiceKey) -> Advice | None:
        """Return the last decision for a service; None before the first of this leadership."""
        considered = self.considered.get(key)
        return considered.advice if considered else None

    async def run(self) -> None:
        """Tick until cancelled."""
        async with aiohttp.ClientSession() as session:
            while True:
                started = time.monotonic()
                if self._is_leader():
                    await self.tick(session)
                else:
                    self._forget_all_but(frozenset())
                await asyncio.sleep(max(0.1, self._settings.tick_seconds - (time.monotonic() - started)))

    async def tick(self, session: aiohttp.ClientSession) -> None:
        """Decide for every service, except in mode External and where the spec can't be read."""
        policies = dict(self._read_policies())
        self._forget_all_but(policies.keys())
        if not policies:
            return
        await asyncio.gather(
            *(
                self._consider_all(
                    {key: policy for key, policy in policies.items() if policy.windows == windows}, session
                )
                for windows in {policy.windows for policy in policies.values()}
            )
        )

    async def _consider_all(
        self, policies: Mapping[ServiceKey, Policy], session: aiohttp.ClientSession
    ) -> None:
        """Ask one question for services of the same windows, and decide for each."""
        objectives = [objective for policy in policies.values() for objective in policy.objectives]
        windows = next(iter(policies.values())).windows
        url = self._settings.prometheus_url
        reading = await fetch_reading(session, url, objectives, self._clock(), windows)
        for key, policy in policies.items():
            try:
                self._consider(key, policy, reading)
            except Exception:  # one service's trouble is not the others'
                LOG.exception("no decision for %s", key)

    def _read_policies(self) -> Iterator[tuple[ServiceKey, Policy]]:
        for key in self._cache.service_keys():
            try:
                spec = Spec.model_validate((self._cache.service(key) or {}).get("spec"))
                if spec.scaling.mode is not ScalingMode.EXTERNAL:
                    yield key, read_policy(spec, self._settings, self._fit_windows(key))
            except ValueError:
                continue  # the planner says in status what is wrong with it

    def _fit_windows(self, key: ServiceKey) -> Windows:
        """Return how far back to look for a service, by how often its replicas were scraped so far."""
        memory = self._memories.get(key)
        return fit_windows(memory.cadence.interval_seconds) if memory else DEFAULT_WINDOWS

    def _forget_all_but(self, keys: AbstractSet[ServiceKey]) -> None:
        """Forget the memories and decisions of all services but these."""
        for gone in self._memories.keys() - keys:
            del self._memories[gone]
            self.considered.pop(gone, None)

    def _consider(self, key: ServiceKey, policy: Policy, reading: Reading) -> None:
        memory = self._memories.get(key) or Memory(desired=_read_desired(self._cache.service(key)))
        signals = self._observe(key, policy, reading)
        decision, self._memories[key] = decide(policy, signals, memory, time.monotonic())
        advice, before = render_advice(decision, signals), self.advice(key)
        self.considered[key] = Considered(decision, signals, self._memories[key], advice, reading.at)
        if before is None or _has_changed(before, advice):
            self._on_change(key)

    def _observe(self, key: ServiceKey, policy: Policy, reading: Reading) -> Signals:
        pods = [pod for pod in map(read_pod, self._cache.pods(key)) if not pod.is_terminating]
        signals = read_signals(reading, key, frozenset(pod.name for pod in pods), policy.objectives)
        ready = sum(pod.is_ready for pod in pods)
        starts = {pod.name: pod.start_seconds for pod in pods if pod.start_seconds is not None}
        return dataclasses.replace(signals, replicas=len(pods), ready_replicas=ready, cold_starts=starts)


def _read_desired(service: dict[str, Any] | None) -> int | None:
    desired = (service or {}).get("status", {}).get("scaling", {}).get("desiredReplicas")
    return None if desired is None else int(desired)


def _has_changed(before: Advice, after: Advice) -> bool:
    fields = ("desired", "reason", "binding", "is_held", "are_objectives_met", "objectives_message")
    return any(getattr(before, field) != getattr(after, field) for field in fields)
