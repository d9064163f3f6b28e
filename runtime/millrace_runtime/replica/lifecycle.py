"""How a replica ends: the supervisor's actions on its processes, and the exit status.

SERVING  --> DRAINING   the first signal to stop
SERVING  --> STOPPING   a process ended by itself
DRAINING --> STOPPING   the streams have ended, a second signal came, the deadline passed, or a process failed
STOPPING --> STOPPING   the deadline passed: the supervisor kills the processes that still run
STOPPING --> DONE       all processes have ended

Pure: time is an argument.
"""

import enum
import signal
from dataclasses import dataclass

from millrace_runtime.replica.heartbeat import Member

STOP_SECONDS = 5.0
"""How long the HTTP process may take to report to its clients that the engine is gone."""
EXIT_FAILURE = 1
EXIT_ENGINE_FAILED = 70  # EX_SOFTWARE
EXIT_PEER_GONE = 75  # the engine's, after the HTTP process closed their socket: its exit has the cause


class Action(enum.Enum):
    """An action of the supervisor on one of its processes."""

    DRAIN_HTTP = "drain http"
    KILL_HTTP = "kill http"
    KILL_ENGINE = "kill engine"


_KILL_ALL = (Action.KILL_HTTP, Action.KILL_ENGINE)


class Stage(enum.Enum):
    """The stage of a replica's life."""

    SERVING = "serving"
    DRAINING = "draining"  # streams in flight finish, new requests are refused
    STOPPING = "stopping"  # the processes have been asked to end
    DONE = "done"


TRANSITIONS: dict[Stage, frozenset[Stage]] = {
    Stage.SERVING: frozenset({Stage.DRAINING, Stage.STOPPING}),
    Stage.DRAINING: frozenset({Stage.STOPPING}),
    Stage.STOPPING: frozenset({Stage.STOPPING, Stage.DONE}),
    Stage.DONE: frozenset(),
}


@dataclass(frozen=True)
class Ending:
    """Why a replica stopped, and its exit status."""

    status: int
    cause: str | None
    """None if the replica was asked to stop."""


class Lifecycle:
    """Takes signals, exits and the time, in their order, and returns the supervisor's actions."""

    def __init__(self, drain_seconds: float) -> None:
        self._drain_seconds = drain_seconds
        self._alive = set(Member)
        self.stage = Stage.SERVING
        self.ending: Ending | None = None
        """None until the cause of the end is known."""
        self.deadline: float | None = None
        """The time at which `expire` is due."""

    def ask_to_stop(self, signal_number: int, now: float) -> tuple[Action, ...]:
        """Drain at the first signal, and kill at a second signal during the drain.

        A replica that is already ending has at most STOP_SECONDS. No signal hides the cause of its end.
        """
        match self.stage:
            case Stage.SERVING:
                self._move_to(Stage.DRAINING, now + self._drain_seconds)
                return (Action.DRAIN_HTTP,)
            case Stage.DRAINING:
                cause = f"stopped at once by a second {signal.Signals(signal_number).name}"
                return self._stop(Ending(128 + signal_number, cause), now, _KILL_ALL)
        return ()

    def expire(self, now: float) -> tuple[Action, ...]:
        """Kill the processes that still run after the deadline."""
        if self.deadline is None or now < self.deadline:
            return ()
        cause = "the HTTP process lost the engine and did not end"
        if self.stage is Stage.DRAINING:
            cause = f"streams were cut: they had not ended {self._drain_seconds:g} s after the signal to stop"
        return self._stop(Ending(EXIT_FAILURE, cause), now, _KILL_ALL)

    def lose(self, member: Member, exit_code: int, now: float) -> tuple[Action, ...]:
        """Stop the other process after `member` ended with os.waitstatus_to_exitcode's `exit_code`."""
        self._alive.discard(member)
        actions = self._stop_after(member, exit_code, now) if self.ending is None else ()
        if not self._alive:
            self._move_to(Stage.DONE, None)
        return actions

    def _stop_after(self, member: Member, exit_code: int, now: float) -> tuple[Action, ...]:
        if member is Member.HTTP:
            return self._stop(self._judge_exit(member, exit_code), now, (Action.KILL_ENGINE,))
        if exit_code != EXIT_PEER_GONE:
            return self._stop(self._judge_exit(member, exit_code), now, (Action.DRAIN_HTTP,))
        if self.stage is not Stage.SERVING:
            return ()  # the HTTP process is ending too
        self._move_to(Stage.STOPPING, now + STOP_SECONDS)  # its exit will have the cause
        return (Action.DRAIN_HTTP,)

    def _stop(self, ending: Ending, now: float, actions: tuple[Action, ...]) -> tuple[Action, ...]:
        """Move to STOPPING and return `actions`. The first ending counts."""
        self.ending = self.ending or ending
        self._move_to(Stage.STOPPING, now + STOP_SECONDS)
        return actions

    def _move_to(self, stage: Stage, deadline: float | None) -> None:
        """Change the stage along TRANSITIONS."""
        assert stage in TRANSITIONS[self.stage], f"{self.stage} -> {stage}"
        self.stage, self.deadline = stage, deadline

    def _judge_exit(self, member: Member, code: int) -> Ending:
        """Return the ending of a replica whose first process to end was `member`."""
        # Killed by SIGTERM: the signal came before the process handled it, so before the first stream.
        if member is Member.HTTP and code in (0, -signal.SIGTERM) and self.stage is Stage.DRAINING:
            return Ending(0, None)
        name = {Member.ENGINE: "engine", Member.HTTP: "HTTP"}[member]
        if code >= 0:
            return Ending(code or EXIT_FAILURE, f"the {name} process ended with exit status {code}")
        hint = "; more memory may be needed" if code == -signal.SIGKILL else ""
        return Ending(128 - code, f"the {name} process was killed by {signal.Signals(-code).name}{hint}")
