"""Which revision runs: the one that the spec asks for, unless that one was tried and rejected. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from millrace_operator.reconcile.rollout import RevisionState
from millrace_operator.resources.conditions import parse_time, render_time

WORDS_LENGTH = 1024
TURN_SECONDS = 60.0
"""The operator's turn takes no time while it runs. Only what it missed is written down."""


@dataclass(frozen=True)
class Progress:
    """How a rollout gets on. Its times are as the API writes them."""

    revision: str
    started_at: str
    progressed_at: str
    """When it began, or a replica more than ever before became ready, or it was last the operator's turn."""
    num_ready: int
    """The most replicas of the revision that were ready."""
    now: float
    """Seconds since 1970."""

    @classmethod
    def read(cls, rollout: Mapping[str, Any], state: RevisionState, now: float) -> Self:
        """Return how it gets on, from `status.rollout` as it was; it begins where that is another's."""
        stamp = render_time(now)
        if rollout.get("revision") != state.hash:
            return cls(state.hash, stamp, stamp, state.num_ready, now)
        started, before = rollout.get("startedAt", stamp), int(rollout.get("readyReplicas", 0))
        since = rollout.get("progressedAt", started)
        is_ours = _is_operators_turn(state) and now >= (parse_time(since) or 0.0) + TURN_SECONDS
        progressed = stamp if state.num_ready > before or is_ours else since
        return cls(state.hash, started, progressed, max(before, state.num_ready), now)

    def seconds_left(self, deadline: float) -> float:
        """Return how long it may go on without progress; 0 or less where it is late."""
        since = parse_time(self.progressed_at)
        return deadline if since is None else since + deadline - self.now

    def render(self) -> dict[str, Any]:
        """Return it as a part of `status.rollout`."""
        return {
            "revision": self.revision,
            "startedAt": self.started_at,
            "progressedAt": self.progressed_at,
            "readyReplicas": self.num_ready,
        }


def _is_operators_turn(state: RevisionState) -> bool:
    """Whether all replicas that were asked for are ready: then the revision is not to blame."""
    return state.num_ready >= max(state.num_wanted, state.num_pods)


@dataclass(frozen=True)
class Choice:
    """The revision that the spec asks for, and the one to run."""

    asked: str
    chosen: str
    rejected: dict[str, Any] | None = None
    """`status.rejectedRevision`; None unless the one asked for was tried and given up."""


@dataclass(frozen=True)
class Trial:
    """How a revision is tried, and what is known of it."""

    deadline: float
    """Seconds that it may go on without progress."""
    way: str
    """What the spec says of rollouts: another way is another try."""
    words: str = ""
    """Why it is not ready."""


def choose_revision(
    asked: str, stable: str | None, old: Mapping[str, Any], progress: Progress, trial: Trial
) -> Choice:
    """Return what to run. `old` is the status as it was.

    `stable` is the revision to go back to, None where there is none or its owner wants none. What was given
    up is tried again only when the spec asks for another revision, or in another way.
    """
    if stable is None or stable == asked:
        return Choice(asked, asked)
    before = old.get("rejectedRevision", {})
    if (before.get("revision"), before.get("way")) == (asked, trial.way):
        return Choice(asked, stable, before)
    is_tried = old.get("rollout", {}).get("revision") == asked
    if not is_tried or progress.seconds_left(trial.deadline) > 0:
        return Choice(asked, asked)
    return Choice(asked, stable, _reject(asked, trial, progress.now))


def _reject(asked: str, trial: Trial, now: float) -> dict[str, Any]:
    return {
        "revision": asked,
        "at": render_time(now),
        "way": trial.way,
        "message": trial.words[:WORDS_LENGTH],
    }
