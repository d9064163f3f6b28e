"""Which revisions of a service get how many replicas. Pure."""

from collections.abc import Collection
from dataclasses import dataclass

from millrace_operator.api.conditions import parse_time
from millrace_operator.api.rollout_types import Rollback
from millrace_operator.api.types import Spec
from millrace_operator.observed.pod_status import find_fetch_time
from millrace_operator.observed.pods import describe_fetch
from millrace_operator.observed.revisions import Observed
from millrace_operator.observed.snapshot import Snapshot
from millrace_operator.rollout.canary import has_failed, watch_canary
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
from millrace_operator.rollout.revision import (
    Revision,
)
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


def choose_targets(snapshot: Snapshot, spec: Spec, observed: Observed, count: Count, known: Known) -> Targets:
    """Return which of the revisions get how many replicas."""
    revisions, digest = known.revisions, known.asked
    old = snapshot.service.get("status", {})
    rollout = old.get("rollout", {})
    stable = old.get("currentRevision") or digest
    choice, progress = _choose(snapshot, spec, observed, digest, revisions, desired=count.desired)
    chosen = choice.chosen
    method = read_method(rollout) if rollout.get("revision") == chosen else Method.SURGE
    beside = {*observed.states, stable} & revisions.keys() - {chosen}
    others = sorted(
        map(observed.state, beside),
        key=lambda state: (state.hash != stable, -revisions[state.hash].number),
    )
    most = progress.canary.most if progress.canary else None
    step = plan_rollout(
        count.desired,
        observed.state(chosen),
        others,
        method,
        spec.rollout.strategy,
        most=most,
        served=old.get("currentRevision"),
    )
    stable = (chosen if step.is_done else old.get("currentRevision")) or digest
    evacuation = plan_evacuation(
        step,
        chosen,
        count.desired,
        observed,
        snapshot.nodes.departures,
        start_seconds=spec.rollout.progress_deadline_seconds,
        since=parse_time(old.get("replacement", {}).get("startedAt")),
        refused={refused.kind for refused in snapshot.obstacles.refusals},
    )
    step = evacuation.add_extra(step, chosen)
    waits_for = known.pending.name if known.pending else digest
    is_given_up = choice.rejected is not None
    spent = find_spent_order(snapshot.service, waits_for, is_given_up=is_given_up)
    return Targets(
        known=known,
        target=revisions[chosen],
        step=step,
        stable=stable,
        choice=choice,
        progress=progress,
        evacuation=evacuation,
        spent_order=spent,
    )


def _choose(
    snapshot: Snapshot,
    spec: Spec,
    observed: Observed,
    asked: str,
    revisions: Collection[str],
    *,
    desired: int,
) -> tuple[Choice, Progress]:
    old, now = snapshot.service.get("status", {}), observed.moment.now
    rollout, stable = old.get("rollout", {}), old.get("currentRevision")
    order = find_action(snapshot.service, asked)
    canary = None
    if stable in revisions and stable != asked:
        canary = watch_canary(spec.rollout, rollout, observed.state(asked), desired, order=order, now=now)
    own, state = observed.pods_of(asked), observed.state(asked)
    fetched_at = find_fetch_time((pod.fetch for pod in own), state.num_ended, now)
    deadline = spec.rollout.progress_deadline_seconds
    progress = Progress.read(rollout, state, now, canary, deadline=deadline, fetched_at=fetched_at)
    faults = [pod.cause for pod in own if pod.cause]
    fetches = [describe_fetch(pod, snapshot.model.fetched.get(pod.name)) for pod in own if pod.is_fetching]
    trial = Trial(
        deadline,
        spec.rollout.describe(),
        words=next(iter([*(fault.message for fault in faults), *fetches]), ""),
        can_return=spec.rollout.rollback is Rollback.AUTOMATIC,
        has_failed_as_canary=has_failed(canary, faults),
        order=order,
    )
    choice = choose_revision(asked, stable if stable in revisions else None, old, progress, trial)
    if choice.chosen != asked:
        progress = Progress.read(rollout, observed.state(choice.chosen), now, deadline=deadline)
    return choice, progress
