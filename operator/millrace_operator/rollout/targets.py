"""Which revisions of a service get how many replicas. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from millrace_operator.api.annotations import Action
from millrace_operator.api.conditions import parse_time
from millrace_operator.api.rollout_types import Rollback
from millrace_operator.api.types import Spec
from millrace_operator.kube.kinds import Obj
from millrace_operator.observed.fetch_run import find_fetch_time
from millrace_operator.observed.pods import Pod, describe_fetch
from millrace_operator.observed.revisions import Observed
from millrace_operator.observed.snapshot import Fetched, Snapshot
from millrace_operator.rollout.canary import Canary, has_failed, watch_canary
from millrace_operator.rollout.choice import (
    Choice,
    Progress,
    Trial,
    choose_revision,
    find_action,
    find_spent_order,
)
from millrace_operator.rollout.evacuation import Evacuation, plan_evacuation
from millrace_operator.rollout.requested_revision import Known
from millrace_operator.rollout.revision import Revision
from millrace_operator.rollout.surge import Method, Step, plan_rollout, read_method
from millrace_operator.scaling.count import Count


@dataclass(frozen=True, kw_only=True)
class Targets:
    """The revisions of a service, and how many replicas some of them get."""

    known: Known
    target: Revision
    """The revision to run."""
    step: Step
    stable: str
    choice: Choice
    progress: Progress
    """Of the target."""
    evacuation: Evacuation
    """Of the target's replicas."""
    spent_order: str | None = None
    """`status.spentOrder`."""

    @property
    def counts(self) -> dict[str, int]:
        """The replicas of each revision that can be made."""
        pending = self.known.pending and self.known.pending.revision
        return {digest: count for digest, count in self.step.counts.items() if digest != pending}


class Attempt(NamedTuple):
    """The revision to run, and its progress."""

    choice: Choice
    progress: Progress

    @property
    def revision(self) -> str:
        """The revision to run."""
        return self.choice.chosen


def choose_targets(snapshot: Snapshot, spec: Spec, observed: Observed, count: Count, known: Known) -> Targets:
    """Return which of the revisions get how many replicas."""
    served = snapshot.status.get("currentRevision")
    attempt = _attempt(snapshot, spec, observed, known, desired=count.desired)
    step = _plan_step(snapshot.status, spec, observed, known, attempt, desired=count.desired)
    evacuation = _plan_evacuation(snapshot, spec, observed, step, attempt.revision, desired=count.desired)
    waits_for = known.pending.name if known.pending else known.asked
    is_given_up = attempt.choice.rejected is not None
    return Targets(
        known=known,
        target=known.revisions[attempt.revision],
        step=evacuation.add_extra(step, attempt.revision),
        stable=(attempt.revision if step.is_done else served) or known.asked,
        choice=attempt.choice,
        progress=attempt.progress,
        evacuation=evacuation,
        spent_order=find_spent_order(snapshot.service, waits_for, is_given_up=is_given_up),
    )


def _attempt(snapshot: Snapshot, spec: Spec, observed: Observed, known: Known, *, desired: int) -> Attempt:
    """Return the revision that the spec asks for, or the last one that served, if it was given up."""
    old, now, asked = snapshot.status, observed.moment.now, known.asked
    rollout, state = old.get("rollout", {}), observed.state(asked)
    served = old.get("currentRevision") if old.get("currentRevision") in known.revisions else None
    order = find_action(snapshot.service, asked)
    canary = None
    if served is not None and served != asked:
        canary = watch_canary(spec.rollout, rollout, state, desired, order=order, now=now)
    fetches = (pod.fetch for pod in observed.pods_of(asked))
    fetched_at = find_fetch_time(fetches, state.num_ended, now)
    deadline = spec.rollout.progress_deadline_seconds
    progress = Progress.read(rollout, state, now, canary, deadline=deadline, fetched_at=fetched_at)
    trial = _describe_trial(snapshot.model.fetched, spec, observed.pods_of(asked), canary, order)
    choice = choose_revision(asked, served, old, progress, trial)
    if choice.chosen != asked:
        progress = Progress.read(rollout, observed.state(choice.chosen), now, deadline=deadline)
    return Attempt(choice, progress)


def _describe_trial(
    fetched: Mapping[str, Fetched],
    spec: Spec,
    pods: Sequence[Pod],
    canary: Canary | None,
    order: Action | None,
) -> Trial:
    """Return how a revision is tried. A fault, or else a fetch, explains why it is not ready."""
    faults = [pod.cause for pod in pods if pod.cause]
    fetches = [describe_fetch(pod, fetched.get(pod.name)) for pod in pods if pod.is_fetching]
    return Trial(
        deadline=spec.rollout.progress_deadline_seconds,
        way=spec.rollout.describe(),
        words=next(iter([*(fault.message for fault in faults), *fetches]), ""),
        can_return=spec.rollout.rollback is Rollback.AUTOMATIC,
        has_failed_as_canary=has_failed(canary, faults),
        order=order,
    )


def _plan_step(
    status: Obj, spec: Spec, observed: Observed, known: Known, attempt: Attempt, *, desired: int
) -> Step:
    """Return the next counts. Of the other revisions the last stable one is kept first, then the newest."""
    served, rollout = status.get("currentRevision"), status.get("rollout", {})
    target, stable = attempt.revision, served or known.asked
    beside = {*observed.states, stable} & known.revisions.keys() - {target}
    others = sorted(
        map(observed.state, beside),
        key=lambda state: (state.hash != stable, -known.revisions[state.hash].number),
    )
    canary = attempt.progress.canary
    return plan_rollout(
        desired,
        observed.state(target),
        others,
        read_method(rollout) if rollout.get("revision") == target else Method.SURGE,
        spec.rollout.strategy,
        most=None if canary is None else canary.most,
        served=served,
    )


def _plan_evacuation(
    snapshot: Snapshot, spec: Spec, observed: Observed, step: Step, revision: str, *, desired: int
) -> Evacuation:
    return plan_evacuation(
        step,
        revision,
        desired,
        observed,
        snapshot.nodes.departures,
        start_seconds=spec.rollout.progress_deadline_seconds,
        since=parse_time(snapshot.status.get("replacement", {}).get("startedAt")),
        refused={refused.kind for refused in snapshot.obstacles.refusals},
    )
