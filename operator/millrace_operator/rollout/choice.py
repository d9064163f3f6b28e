"""Which revision runs: the one that the spec asks for, unless it was tried and given up. Pure.

A person may promote or abort a revision by an annotation, which stays on the service after it was obeyed. So
`status.spentOrder` records an order that is over: its revision is not the one that the spec asks for, or that
revision was given up. It no longer counts, even if the revision comes back. Other words are another order,
and so are the same words after the annotation was gone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from millrace_operator.api.annotations import Action, OrderError, find_order
from millrace_operator.api.conditions import parse_time, render_time
from millrace_operator.api.rollout_types import RejectionReason
from millrace_operator.kube.kinds import Obj
from millrace_operator.rollout.canary import Canary
from millrace_operator.rollout.surge import RevisionState

WORDS_LENGTH = 1024
TURN_SECONDS = 60.0
"""While the operator has to act next (its turn), the deadline stands still. Status records the time so often,
and for a short deadline at each half of it. Otherwise the end of a long turn would make the rollout late.
"""
LEAST_TURN_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a rollout. Its times are as the API writes them."""

    revision: str
    started_at: str
    progressed_at: str
    """When the rollout began, when another replica became ready, or when it was the operator's turn."""
    num_ready: int
    """The most replicas of the revision that were ready."""
    now: float
    """Seconds since 1970."""
    canary: Canary | None = None
    pods_since: float | None = None
    """When its last pod was created, in seconds since 1970: no progress was possible before."""
    waits_for_others: bool = False
    """Whether the operator or Kubernetes' controllers must act next, and not the revision."""
    fetched_at: float | None = None
    """Until when any of its pods fetched the model, in seconds since 1970, as kubelets report it."""
    noted_after: float | None = None
    """After how many seconds to record the operator's turn; None if it is not its turn."""

    @classmethod
    def read(
        cls,
        rollout: Mapping[str, Any],
        state: RevisionState,
        now: float,
        canary: Canary | None = None,
        *,
        deadline: float,
        fetched_at: float | None = None,
    ) -> Self:
        """Return the progress, from the old `status.rollout`; a new one if that is another revision's.

        `deadline` is how many seconds it may go on without progress.
        """
        stamp = render_time(now)
        if rollout.get("revision") != state.hash:
            return cls(
                revision=state.hash,
                started_at=stamp,
                progressed_at=stamp,
                num_ready=state.num_ready,
                now=now,
                canary=canary,
            )
        pods_since = None if state.num_ended else state.newest_at
        started, before = rollout.get("startedAt", stamp), int(rollout.get("readyReplicas", 0))
        since = rollout.get("progressedAt", started)
        # While a canary serves, no deadline runs, and no status is written each minute for days.
        is_turn = _is_operators_turn(state) and not (canary is not None and canary.is_serving)
        turn, taken = _find_turn_seconds(deadline), now - (parse_time(since) or 0.0)
        is_ours = is_turn and taken >= turn
        has_moved = state.num_ready > before or _has_canary_ended(rollout.get("canary", {}), canary)
        is_noted = has_moved or is_ours
        progressed = stamp if is_noted else since
        noted_after = (turn if is_noted else turn - taken) if is_turn else None
        num_ready = max(before, state.num_ready)
        waits = _waits_for_pods(state) or _is_operators_turn(state)
        return cls(
            revision=state.hash,
            started_at=started,
            progressed_at=progressed,
            num_ready=num_ready,
            now=now,
            canary=canary,
            pods_since=pods_since,
            waits_for_others=waits,
            fetched_at=fetched_at,
            noted_after=noted_after,
        )

    def seconds_left(self, deadline: float) -> float:
        """Return how long it may go on without progress; 0 or less if it is late."""
        since = parse_time(self.progressed_at)
        is_serving = self.canary is not None and self.canary.is_serving
        if since is None or is_serving or self.waits_for_others:
            return deadline
        return max(since, self.pods_since or 0.0, self.fetched_at or 0.0) + deadline - self.now

    def render(self) -> dict[str, Any]:
        """Return it as a part of `status.rollout`."""
        canary = {} if self.canary is None else {"canary": self.canary.render()}
        return {
            "revision": self.revision,
            "startedAt": self.started_at,
            "progressedAt": self.progressed_at,
            "readyReplicas": self.num_ready,
            **canary,
        }


def _has_canary_ended(before: Mapping[str, Any], canary: Canary | None) -> bool:
    """Whether a canary has ended its service: that time was its owner's and not the revision's."""
    was_serving = "readyAt" in before and "promotedAt" not in before
    return was_serving and not (canary is not None and canary.is_serving)


def _find_turn_seconds(deadline: float) -> float:
    """Return how much of the operator's turn may pass before status records it."""
    return min(TURN_SECONDS, max(LEAST_TURN_SECONDS, deadline / 2))


def _is_operators_turn(state: RevisionState) -> bool:
    """Whether all requested replicas are ready, so that the operator has to act."""
    return state.num_ready >= max(state.num_wanted, state.num_pods)


def _waits_for_pods(state: RevisionState) -> bool:
    """Whether Kubernetes still has to create a pod, while nothing refuses it and no pod has failed.

    Unlike the operator's turn, status does not record this: if a control plane were away for an hour, each
    such service would be written each minute. The pod's own age counts once the pod exists.
    """
    is_short = state.num_pods < state.num_wanted
    return is_short and state.num_ready >= state.num_pods and not (state.lacks_room or state.num_ended)


@dataclass(frozen=True)
class Choice:
    """The revision that the spec asks for, and the one to run."""

    asked: str
    chosen: str
    rejected: dict[str, Any] | None = None
    """`status.rejectedRevision`; None unless the requested revision was tried and given up."""


@dataclass(frozen=True)
class Trial:
    """How a revision is tried, and the state of that trial."""

    deadline: float
    """For how many seconds it may go on without progress."""
    way: str
    """The spec's options for rollouts: with other options it is another trial."""
    words: str = ""
    """Why it is not ready."""
    can_return: bool = True
    """Whether it is given up without a person's action."""
    has_failed_as_canary: bool = False
    order: Action | None = None


def choose_revision(
    asked: str, stable: str | None, old: Mapping[str, Any], progress: Progress, trial: Trial
) -> Choice:
    """Return the revision to run. `old` is the old status.

    `stable` is the revision to go back to; None without one. A revision that was given up is tried again only
    if the spec asks for another one meanwhile, if the options for rollouts change, or if somebody promotes
    it.
    """
    if stable is None or stable == asked:
        return Choice(asked, asked)
    before = old.get("rejectedRevision", {})
    is_known = (before.get("revision"), before.get("way")) == (asked, trial.way)
    if is_known and trial.order is not Action.PROMOTE:
        return Choice(asked, stable, before)
    reason = _find_fault(asked, old, progress, trial)
    if reason is None:
        return Choice(asked, asked)
    return Choice(asked, stable, _reject(asked, reason, trial, progress.now))


def _find_fault(
    asked: str, old: Mapping[str, Any], progress: Progress, trial: Trial
) -> RejectionReason | None:
    """Return why to give the revision up; None if its trial goes on."""
    if trial.order is Action.ABORT:
        return RejectionReason.ABORTED
    is_tried = old.get("rollout", {}).get("revision") == asked
    if not (is_tried and trial.can_return):
        return None
    if trial.has_failed_as_canary:
        return RejectionReason.CANARY_FAILED
    return RejectionReason.DEADLINE_EXCEEDED if progress.seconds_left(trial.deadline) <= 0 else None


def _reject(asked: str, reason: RejectionReason, trial: Trial, now: float) -> dict[str, Any]:
    return {
        "revision": asked,
        "at": render_time(now),
        "way": trial.way,
        "reason": reason.value,
        "message": trial.words[:WORDS_LENGTH],
    }


def find_action(service: Obj, revision: str) -> Action | None:
    """Return the order for this revision that counts now; None without one, or for an unreadable one."""
    try:
        order = find_order(service)
    except OrderError:
        return None
    if order is None or order.revision != revision or str(order) == _find_spent(service):
        return None
    return order.action


def find_spent_order(service: Obj, revision: str, *, is_given_up: bool) -> str | None:
    """Return the annotation's order if it is over. `revision` is the one that the spec asks for."""
    try:
        order = find_order(service)
    except OrderError:
        return None
    if order is None:
        return None
    is_over = order.revision != revision or is_given_up or str(order) == _find_spent(service)
    return str(order) if is_over else None


def _find_spent(service: Obj) -> str | None:
    spent: str | None = service.get("status", {}).get("spentOrder")
    return spent
