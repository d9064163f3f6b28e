"""Startup, readiness and liveness of one run of a container: when to ask, and what follows from the answers.

`decide` and `ProbeCounter` are pure. `ContainerProbes` asks by a `Prober` and reports each answer.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

Object = dict[str, Any]


class ProbeKind(Enum):
    """The value is the field of a container that holds the probe."""

    STARTUP = "startupProbe"
    READINESS = "readinessProbe"
    LIVENESS = "livenessProbe"


class Consequence(Enum):
    """What the container's worker does."""

    NOTHING = "nothing"
    NOTE_STARTED = "note started"
    NOTE_READY = "note ready"
    NOTE_UNREADY = "note unready"
    RESTART = "restart"


_CONSEQUENCES = {
    (ProbeKind.STARTUP, True): Consequence.NOTE_STARTED,
    (ProbeKind.STARTUP, False): Consequence.RESTART,
    (ProbeKind.READINESS, True): Consequence.NOTE_READY,
    (ProbeKind.READINESS, False): Consequence.NOTE_UNREADY,
    (ProbeKind.LIVENESS, True): Consequence.NOTHING,
    (ProbeKind.LIVENESS, False): Consequence.RESTART,
}


@dataclass
class ProbeCounter:
    """Answers in a row against thresholds."""

    success_threshold: int = 1
    failure_threshold: int = 3
    _streak: int = 0
    _last: bool | None = None

    def observe(self, is_ok: bool) -> bool | None:  # noqa: FBT001
        """Return the answer once enough in a row were the same, else None."""
        self._streak = self._streak + 1 if is_ok == self._last else 1
        self._last = is_ok
        threshold = self.success_threshold if is_ok else self.failure_threshold
        return is_ok if self._streak >= threshold else None


def decide(kind: ProbeKind, verdict: bool | None) -> Consequence:  # noqa: FBT001
    """Return what follows from a counter's verdict."""
    return Consequence.NOTHING if verdict is None else _CONSEQUENCES[kind, verdict]


@dataclass(frozen=True)
class ProbeAnswer:
    """One answer and what follows from it."""

    kind: ProbeKind
    probe: Object
    failure: str | None
    """What is wrong; None when all is well."""
    consequence: Consequence


class Asker(Protocol):
    """Asks one run of a container."""

    async def ask(self, action: Object, timeout_seconds: float) -> str | None:
        """Return None when all is well, else what is wrong."""


class ContainerProbes:
    """The probes of one run of a container; `react` takes each answer."""

    def __init__(self, container: Object, asker: Asker, react: Callable[[ProbeAnswer], None]) -> None:
        self._container = container
        self._asker = asker
        self._react = react

    async def run(self) -> None:
        """Ask until cancelled: startup until it passes, then readiness and liveness side by side.

        Nothing is asked of a run once its startup has failed for good, and no liveness once that has.
        """
        if await self._follow(ProbeKind.STARTUP) is Consequence.RESTART:
            return
        async with asyncio.TaskGroup() as group:
            for kind in (ProbeKind.READINESS, ProbeKind.LIVENESS):
                group.create_task(self._follow(kind))

    async def _follow(self, kind: ProbeKind) -> Consequence:
        """Ask until the container has started or is to restart; return which."""
        if (probe := self._container.get(kind.value)) is None:
            return Consequence.NOTHING
        counter = ProbeCounter(probe.get("successThreshold", 1), probe.get("failureThreshold", 3))
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        while True:
            failure = await self._asker.ask(probe, float(probe.get("timeoutSeconds", 1)))
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise asyncio.CancelledError  # it was lost to an answer that came at the same moment
            consequence = decide(kind, counter.observe(failure is None))
            self._react(ProbeAnswer(kind, probe, failure, consequence))
            if consequence in (Consequence.NOTE_STARTED, Consequence.RESTART):
                return consequence
            await asyncio.sleep(probe.get("periodSeconds", 10))
