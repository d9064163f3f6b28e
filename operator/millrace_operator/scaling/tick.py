"""The autoscaling tick: every service, every few seconds, on the leader alone."""

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable
from typing import Any

import aiohttp
from pydantic import ValidationError

from millrace_operator.autoscale.decide import decide
from millrace_operator.autoscale.decision import Decision
from millrace_operator.autoscale.memory import Memory
from millrace_operator.autoscale.observation import Signals
from millrace_operator.autoscale.signals import observe_signals
from millrace_operator.ingest.cache import Cache, Key
from millrace_operator.reconcile.pods import read_pod
from millrace_operator.reconcile.snapshot import Advice
from millrace_operator.resources.types import ScalingMode, Spec
from millrace_operator.scaling.advisor import read_policy, render_advice
from millrace_operator.scaling.running import observe_running
from millrace_operator.scaling.settings import ScalingSettings

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Considered:
    """What was decided for a service, from what, and when (seconds since 1970)."""

    decision: Decision
    signals: Signals
    memory: Memory
    """As it is after the decision."""
    advice: Advice
    at: float


class ScalingLoop:
    """Keeps each service's memory and its last decision, and says when the planner should look."""

    def __init__(
        self,
        cache: Cache,
        settings: ScalingSettings,
        on_change: Callable[[Key], None],
        is_leader: Callable[[], bool],
    ) -> None:
        self._cache = cache
        self._url = settings.prometheus_url
        self._settings = settings
        self._on_change = on_change
        self._is_leader = is_leader
        self._memories: dict[Key, Memory] = {}
        self.considered: dict[Key, Considered] = {}

    def advice(self, key: Key) -> Advice | None:
        """Return the last decision for a service; None before the first of this leadership."""
        considered = self.considered.get(key)
        return considered.advice if considered else None

    async def run(self) -> None:
        """Tick until cancelled."""
        async with aiohttp.ClientSession() as session:
            while True:
                started = time.monotonic()
                if self._is_leader():
                    await self._tick(session)
                else:
                    self._memories.clear()
                    self.considered.clear()
                await asyncio.sleep(max(0.1, self._settings.tick_seconds - (time.monotonic() - started)))

    async def _tick(self, session: aiohttp.ClientSession) -> None:
        keys = self._cache.service_keys()
        for gone in self.considered.keys() - set(keys):
            del self.considered[gone]
            self._memories.pop(gone, None)
        results = await asyncio.gather(*(self.consider(session, key) for key in keys), return_exceptions=True)
        for key, result in zip(keys, results, strict=True):
            if isinstance(result, BaseException):
                LOG.error("no decision for %s/%s", *key, exc_info=result)

    async def consider(self, session: aiohttp.ClientSession, key: Key) -> None:
        """Decide for one service; services in mode External, or that nobody can read, are left alone."""
        service = self._cache.service(key)
        spec = None if service is None else _read_spec(service)
        if service is None or spec is None or spec.scaling.mode is ScalingMode.EXTERNAL:
            self.considered.pop(key, None)
            self._memories.pop(key, None)
            return
        policy = read_policy(spec, self._settings)
        signals = await self._observe(session, key, policy.objectives)
        memory = self._memories.get(key) or Memory(desired=_desired_of(service))
        decision, self._memories[key] = decide(policy, signals, memory, time.monotonic())
        advice = render_advice(decision, signals)
        before = self.advice(key)
        if before is None or decision.desired < before.desired:
            running = await observe_running(session, self._url, *key)
            advice = dataclasses.replace(advice, running_requests=running)
        self.considered[key] = Considered(decision, signals, self._memories[key], advice, time.time())
        if before is None or _differs(before, advice):
            self._on_change(key)

    async def _observe(self, session: aiohttp.ClientSession, key: Key, objectives: Any) -> Signals:
        pods = [pod for pod in map(read_pod, self._cache.pods(key)) if not pod.is_terminating]
        names = frozenset(pod.name for pod in pods)
        signals = await observe_signals(session, self._url, *key, names, time.time(), objectives=objectives)
        ready = sum(pod.is_ready for pod in pods)
        return dataclasses.replace(signals, replicas=len(pods), ready_replicas=ready)


def _read_spec(service: dict[str, Any]) -> Spec | None:
    try:
        return Spec.model_validate(service["spec"])
    except ValidationError:
        return None


def _desired_of(service: dict[str, Any]) -> int | None:
    desired = service.get("status", {}).get("scaling", {}).get("desiredReplicas")
    return None if desired is None else int(desired)


def _differs(before: Advice, after: Advice) -> bool:
    fields = ("desired", "reason", "binding", "is_held", "are_objectives_met", "objectives_message")
    return any(getattr(before, field) != getattr(after, field) for field in fields)
