"""Which revisions of a service are to have how many replicas. Pure."""

from collections.abc import Collection
from dataclasses import dataclass

from millrace_operator.reconcile.canary import has_failed, watch_canary
from millrace_operator.reconcile.choice import Choice, Progress, Trial, choose_revision
from millrace_operator.reconcile.evacuation import Evacuation, plan_evacuation
from millrace_operator.reconcile.observed import Observed
from millrace_operator.reconcile.render.pod_template import render_pod_template
from millrace_operator.reconcile.render.settings import RenderSettings
from millrace_operator.reconcile.revision import (
    Revision,
    hash_inputs,
    next_number,
    read_revisions,
    revision_inputs,
)
from millrace_operator.reconcile.rollout import Method, Step, plan_rollout, read_method
from millrace_operator.reconcile.scale import Count
from millrace_operator.reconcile.snapshot import Snapshot
from millrace_operator.resources.rollout_order import find_action
from millrace_operator.resources.types import Rollback, Spec


@dataclass(frozen=True)
class Targets:
    """The revisions of a service, and which of them are to have how many replicas."""

    target: Revision
    """The one to run."""
    revisions: dict[str, Revision]
    step: Step
    stable: str
    choice: Choice
    progress: Progress
    """Of the target."""
    evacuation: Evacuation
    """Of the target's replicas."""


def find_revisions(settings: RenderSettings, snapshot: Snapshot, spec: Spec) -> dict[str, Revision]:
    """Return the revisions by hash, and with them the one that the spec asks for.

    One that is new is made here. Raises VersionError where it has no image.
    """
    revisions = read_revisions(list(snapshot.owned().values()))
    inputs = revision_inputs(spec)
    digest = hash_inputs(inputs)
    if digest not in revisions:
        template = render_pod_template(settings, snapshot.service, spec, digest)
        revisions[digest] = Revision(digest, next_number(revisions.values()), inputs, template)
    return revisions


def choose_targets(
    snapshot: Snapshot,
    spec: Spec,
    observed: Observed,
    count: Count,
    revisions: dict[str, Revision],
) -> Targets:
    """Return which of the revisions are to have how many replicas."""
    digest = hash_inputs(revision_inputs(spec))
    old = snapshot.service.get("status", {})
    rollout = old.get("rollout", {})
    stable = old.get("currentRevision") or digest
    choice, progress = _choose(snapshot, spec, observed, digest, revisions, desired=count.desired)
    chosen = choice.chosen
    method = read_method(rollout) if rollout.get("revision") == chosen else Method.SURGE
    known = {*observed.states, stable} & revisions.keys() - {chosen}
    others = sorted(
        map(observed.state, known),
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
    stable = chosen if step.is_done else stable
    evacuation = plan_evacuation(
        step,
        chosen,
        count.desired,
        observed,
        snapshot.departures,
        start_seconds=spec.rollout.progress_deadline_seconds,
    )
    step = evacuation.add_extra(step, chosen)
    return Targets(revisions[chosen], revisions, step, stable, choice, progress, evacuation)


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
    progress = Progress.read(rollout, observed.state(asked), now, canary)
    faults = [pod.cause for pod in observed.pods_of(asked) if pod.cause]
    trial = Trial(
        spec.rollout.progress_deadline_seconds,
        Trial.describe_way(spec.rollout.describe(), order),
        words=faults[0].message if faults else "",
        can_return=spec.rollout.rollback is Rollback.AUTOMATIC,
        has_failed_as_canary=has_failed(canary, faults),
        order=order,
    )
    choice = choose_revision(asked, stable if stable in revisions else None, old, progress, trial)
    if choice.chosen != asked:
        progress = Progress.read(rollout, observed.state(choice.chosen), now)
    return choice, progress
