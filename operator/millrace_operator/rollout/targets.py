"""Which revisions of a service are to have how many replicas. Pure."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import NamedTuple

from millrace_operator.api.conditions import parse_time
from millrace_operator.api.model_uri import is_fetched
from millrace_operator.api.types import Rollback, Spec
from millrace_operator.api.versions import VersionError
from millrace_operator.model.cached_model import find_place
from millrace_operator.model.claims import judge_claim
from millrace_operator.model.fill import find_filling, find_lateness, is_begun
from millrace_operator.model.fit import judge_fit
from millrace_operator.model.found_model import FoundModel
from millrace_operator.model.look import find_looking
from millrace_operator.model.pending_revision import Pending, Stage
from millrace_operator.model.resolve import find_told
from millrace_operator.model.retry import explain_unread, note_asking
from millrace_operator.observed.pod_status import find_fetch_time
from millrace_operator.observed.pods import describe_fetch, read_pod
from millrace_operator.observed.revisions import Observed
from millrace_operator.observed.snapshot import Snapshot
from millrace_operator.render.metadata import revision_name
from millrace_operator.render.pod_template import render_pod_template
from millrace_operator.render.settings import RenderSettings
from millrace_operator.rollout.canary import has_failed, watch_canary
from millrace_operator.rollout.choice import Choice, Progress, Trial, choose_revision
from millrace_operator.rollout.evacuation import Evacuation, plan_evacuation
from millrace_operator.rollout.orders import find_action, find_spent_order
from millrace_operator.rollout.requested_revision import Asked, find_asked, find_same
from millrace_operator.rollout.revision import (
    Revision,
    next_number,
    read_revisions,
)
from millrace_operator.rollout.surge import Method, Step, plan_rollout, read_method
from millrace_operator.scaling.count import Count


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
    spent_order: str | None = None
    """`status.spentOrder`."""
    pending: Pending | None = None
    """The revision that the spec asks for, where it cannot be made yet."""
    refreshed: Revision | None = None
    """One that never runs: its record says that the source was asked anew, and has what it had."""
    answered: Revision | None = None
    """The pending one, where it is known what its model is."""

    @property
    def counts(self) -> dict[str, int]:
        """The replicas of each revision that can be made."""
        pending = self.pending and self.pending.revision
        return {digest: count for digest, count in self.step.counts.items() if digest != pending}


class Known(NamedTuple):
    """The revisions of a service, and which of them the spec asks for."""

    revisions: dict[str, Revision]
    """By hash."""
    asked: str
    error: VersionError | None = None
    """Why the one that the spec asks for cannot be made. Then the one that served last is asked for."""
    pending: Pending | None = None
    """That it can't be made yet. Then the one that served last is asked for, if any did."""
    refreshed: Revision | None = None
    """One for which the source was asked anew, and had the model of the one that is asked for."""
    answered: Revision | None = None
    """The pending one, where it is known what its model is: its record says that, and no more."""

    @property
    def model(self) -> FoundModel | None:
        """What is known of the model that the spec asks for."""
        if self.pending is not None:
            return self.pending.found
        return self.revisions[self.asked].model if self.error is None else None


def find_revisions(settings: RenderSettings, snapshot: Snapshot, spec: Spec, now: float) -> Known:
    """Return the revisions with the one that the spec asks for. One that is new is made here.

    Raises VersionError where that one has no image, and none has served before.
    """
    revisions = read_revisions(list(snapshot.owned().values()))
    served = snapshot.service.get("status", {}).get("currentRevision")
    wanted = find_asked(snapshot.service, spec, revisions)
    digest = wanted.hash
    recorded, told = (
        revisions.get(digest),
        find_told(snapshot.jobs, revision_name(snapshot.service, digest), spec.model.uri),
    )
    if recorded is not None and not recorded.is_pending:
        return _choose_same(revisions, recorded, served)
    known_model = None if recorded is None else recorded.model
    model = told or known_model
    try:
        template = render_pod_template(settings, snapshot.service, spec, digest, model)
    except VersionError as error:
        if served not in revisions:
            raise
        return Known(revisions, served, error)
    place = find_place(spec.model, model)
    number = next_number(revisions.values()) if recorded is None else recorded.number
    made = Revision(
        hash=digest, number=number, inputs=wanted.inputs, template=template, model=model, cached=place
    )
    known = _choose_same({**revisions, digest: made}, made, served)
    if known.refreshed is not None:
        return known
    is_kept = place is not None and served in revisions and revisions[served].cached == place
    is_read = is_kept and any(pod.revision == served and pod.is_ready for pod in map(read_pod, snapshot.pods))
    pending = _find_pending(snapshot, spec, digest, model, now, is_read=is_read)
    if pending is None:
        is_pending = None if recorded is None else False
        return known._replace(revisions={**known.revisions, digest: replace(made, is_pending=is_pending)})
    if model is not None:
        made = replace(made, template={}, is_pending=True)
        known = known._replace(revisions={**known.revisions, digest: made}, answered=made)
    pending = replace(note_asking(pending, snapshot.jobs, snapshot.service), known_as=wanted.before)
    return known._replace(asked=_choose_meanwhile(snapshot, revisions, wanted), pending=pending)


def _choose_meanwhile(snapshot: Snapshot, revisions: dict[str, Revision], wanted: Asked) -> str:
    """Return what runs until the wanted revision can be made.

    A refresh stops no rollout: what was asked for before it goes on, unless that was given up.
    """
    status = snapshot.service.get("status", {})
    served, before = status.get("currentRevision"), revisions.get(wanted.before or "")
    rejected = status.get("rejectedRevision", {}).get("revision")
    if before is not None and not before.is_pending and before.hash != rejected:
        return find_same(before, revisions.values(), served).hash
    return served if served in revisions else wanted.hash


def _choose_same(revisions: dict[str, Revision], wanted: Revision, served: str | None) -> Known:
    """Return what is asked for: an earlier revision where `wanted` has the model of that one."""
    same = find_same(wanted, revisions.values(), served)
    return Known(revisions, same.hash, refreshed=None if same.hash == wanted.hash else wanted)


def _find_pending(
    snapshot: Snapshot, spec: Spec, digest: str, model: FoundModel | None, now: float, *, is_read: bool
) -> Pending | None:
    """Return why a revision can't be made yet, or never; None where it can.

    `is_read` says that replicas that serve now read the same model from the same folder: it is there.
    """
    if model is None and not is_fetched(spec.model.uri):
        return find_looking(snapshot, spec, digest, now)
    if model is None:
        job = revision_name(snapshot.service, digest)
        unread = explain_unread(snapshot.jobs, job)
        cause = snapshot.jobs.explain_delay(job) or unread or judge_claim(spec, snapshot.claim)
        return find_lateness(Pending(digest, spec.model.uri, cause=cause), snapshot, spec, job, now)
    # What was at hand has started wherever an autoscaler added a node: labels of those there refuse nothing.
    is_free = is_begun(snapshot, digest) or not is_fetched(spec.model.uri)
    nodes = () if is_free else snapshot.gpu_nodes.values()
    refusal = judge_fit(spec, model.facts, nodes).refusal if model.facts else None
    if refusal is not None:
        return Pending(digest, spec.model.uri, Stage.NEVER, refusal, model)
    return None if is_read else find_filling(snapshot, spec, digest, model, now)


def choose_targets(snapshot: Snapshot, spec: Spec, observed: Observed, count: Count, known: Known) -> Targets:
    """Return which of the revisions are to have how many replicas."""
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
        snapshot.departures,
        start_seconds=spec.rollout.progress_deadline_seconds,
        since=parse_time(old.get("replacement", {}).get("startedAt")),
        refused={refused.kind for refused in snapshot.refusals},
    )
    step = evacuation.add_extra(step, chosen)
    waits_for = known.pending.name if known.pending else digest
    is_given_up = choice.rejected is not None
    spent = find_spent_order(snapshot.service, waits_for, is_given_up=is_given_up)
    return Targets(
        target=revisions[chosen],
        revisions=revisions,
        step=step,
        stable=stable,
        choice=choice,
        progress=progress,
        evacuation=evacuation,
        spent_order=spent,
        pending=known.pending,
        refreshed=known.refreshed,
        answered=known.answered,
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
    fetches = [describe_fetch(pod, snapshot.fetched.get(pod.name)) for pod in own if pod.is_fetching]
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
