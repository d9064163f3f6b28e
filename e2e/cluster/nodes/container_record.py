"""What is known of one container, and how each thing that happens to it changes that. Pure.

From and to, with the transition between them:

    Waiting    -> Waiting       wait       it can't start yet, for another reason than before
    Waiting    -> Running       start
    Running    -> Terminated    end
    Terminated -> Waiting       wait       it is to start again, after its back-off
    Terminated -> Running       start      it starts again at once
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Self

Object = dict[str, Any]


@dataclass(frozen=True)
class Waiting:
    """Not started, and why."""

    reason: str = "ContainerCreating"
    message: str = ""


@dataclass(frozen=True)
class Running:
    """Started."""

    since: datetime


@dataclass(frozen=True)
class Terminated:
    """Ended."""

    exit_code: int
    message: str
    started: datetime
    finished: datetime
    container_id: str

    @property
    def reason(self) -> str:
        """The reason that status shows."""
        return "Error" if self.exit_code else "Completed"

    @property
    def ran_seconds(self) -> float:
        """How long it ran."""
        return (self.finished - self.started).total_seconds()


@dataclass(frozen=True)
class ContainerRecord:
    """All that status shows of one container. Each transition returns the record after it."""

    name: str
    image: str
    has_startup_probe: bool = False
    has_readiness_probe: bool = False
    state: Waiting | Running | Terminated = Waiting()
    last: Terminated | None = None
    """How the run before this one ended."""
    restart_count: int = 0
    container_id: str = ""
    """Of its latest run on this node; empty before the first."""
    is_started: bool = False
    """It runs, and its startup probe has passed if it has one."""
    is_ready: bool = False
    """It is started, and its readiness probe passes if it has one."""

    @property
    def next_run(self) -> int:
        """The number of the run that starts next, which its log file is named by."""
        return self.restart_count + 1 if self.container_id else self.restart_count

    def wait(self, why: Waiting) -> Self:
        """It can't start now, or not yet again."""
        assert not isinstance(self.state, Running)
        return replace(self, state=why, last=self._latest_end())

    def start(self, pod_uid: str, now: datetime) -> Self:
        """Its next run has begun."""
        assert not isinstance(self.state, Running)
        return replace(
            self,
            state=Running(now),
            last=self._latest_end(),
            restart_count=self.next_run,
            container_id=f"process://{pod_uid}-{self.name}-{self.next_run}",
            is_started=not self.has_startup_probe,
            is_ready=not self.has_startup_probe and not self.has_readiness_probe,
        )

    def pass_startup(self) -> Self:
        """Its startup probe has passed."""
        return replace(self, is_started=True, is_ready=not self.has_readiness_probe)

    def answer_readiness(self, *, is_ready: bool) -> Self:
        """Its readiness probe has passed or failed."""
        return replace(self, is_ready=is_ready)

    def end(self, exit_code: int, message: str, now: datetime) -> Self:
        """Its run has ended."""
        assert isinstance(self.state, Running)
        ended = Terminated(exit_code, message, self.state.since, now, self.container_id)
        return replace(self, state=ended, is_started=False, is_ready=False)

    def _latest_end(self) -> Terminated | None:
        return self.state if isinstance(self.state, Terminated) else self.last


def begin_record(container: Object, restarts: int) -> ContainerRecord:
    """Return the record of a container that has not started on this node."""
    return ContainerRecord(
        container["name"],
        container["image"],
        has_startup_probe="startupProbe" in container,
        has_readiness_probe="readinessProbe" in container,
        restart_count=restarts,
    )
