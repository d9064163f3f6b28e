"""The plan for one service: what to write, and when to plan again. Pure; `writer.py` acts on it."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from millrace_operator.api.annotations import Pin, find_active_pin
from millrace_operator.api.types import Spec
from millrace_operator.controller.children import (
    Apply,
    Delete,
    find_applies,
    find_deletes,
    render_children,
)
from millrace_operator.kube.kinds import POD, ObjectId, object_id
from millrace_operator.model.job_plan import list_job_looks, render_jobs
from millrace_operator.observed.revisions import Moment, Observed, observe
from millrace_operator.observed.snapshot import Snapshot, find_left_over
from millrace_operator.render.child import Child
from millrace_operator.render.settings import RenderSettings
from millrace_operator.rollout.requested_revision import find_revisions
from millrace_operator.rollout.surge import Step
from millrace_operator.rollout.targets import Targets, choose_targets
from millrace_operator.scaling.competing_autoscalers import LOOK_SECONDS, is_scaled_by_others
from millrace_operator.scaling.count import Count, choose_count
from millrace_operator.scaling.drain import Mark, Traffic, plan_shrink
from millrace_operator.scaling.rest import Rest, find_rest
from millrace_operator.status.events import Note, find_notes
from millrace_operator.status.inputs import StatusInputs, TakenNames
from millrace_operator.status.refused_spec import render_refused_status
from millrace_operator.status.status import FullStatus, render_full_status

CONFLICT_RETRY_SECONDS = 10.0
LEAST_LOOK_SECONDS = 2.0
"""Between two checks whether a service may rest, for any scaleToZeroAfter."""
DRAIN_LOOK_SECONDS = 1.0
"""Between two checks of the requests that a marked pod still has."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to write, in this order: status, scale, marks, applies, deletes, events."""

    status: dict[str, Any] | None = None
    scale: int | None = None
    """The count to write into spec.replicas: an HPA does not begin without one."""
    marks: tuple[Mark, ...] = ()
    applies: tuple[Apply, ...] = ()
    deletes: tuple[Delete, ...] = ()
    events: tuple[Note, ...] = ()
    requeue_after: float | None = None
    """Seconds until a change that comes by time alone."""
    is_contested: bool = False
    """Whether somebody else changed the count of a Deployment."""
    is_inherited: bool = False
    """Whether status repeats conditions of the previous leader, so that the next plan may have others."""
    has_only_new_words: bool = False
    """Whether only words are new in the status."""
    has_only_new_time: bool = False
    """Whether only the rollout's time is new in the status."""

    def is_for_refused(self, refused: Collection[ObjectId]) -> bool:
        """Whether beside the status it writes some of these objects, and nothing else."""
        writes = [object_id(write.obj) for write in self.list_writes()]
        return bool(writes) and not self.marks and all(identity in refused for identity in writes)

    def list_writes(self) -> list[Apply | Delete]:
        """Return the writes of children, in order."""
        return [*self.applies, *self.deletes]


class Pace(NamedTuple):
    """How far the Deployments may go now."""

    counts: dict[str, int]
    """By revision. Those that fall come last."""
    num_placed: int
    """Desired replicas without those that have waited in vain for a node or a pod."""
    marks: tuple[Mark, ...]
    """Pods to mark before a count may fall further."""
    is_waiting: bool
    """Whether the operator waits for requests of a marked pod."""


def plan(settings: RenderSettings, snapshot: Snapshot, now: float) -> Plan:
    """Return the writes that bring the service nearer to its spec. `now` is seconds since 1970."""
    if "deletionTimestamp" in snapshot.service["metadata"]:
        return Plan()  # garbage collection deletes the children, whether we run or not
    try:
        spec = Spec.model_validate(snapshot.service["spec"]).complete(settings.access)
        known = find_revisions(settings, snapshot, spec, now)
    except ValueError as error:
        return _plan_refusal(snapshot, error, now)
    observed = _observe(snapshot, Moment(now, spec.rollout.scheduling_timeout_seconds))
    pin, rest = find_active_pin(snapshot.service, now), _find_rest(snapshot, spec, observed)
    count = _decide_count(snapshot, spec, observed, pin=pin, rest=rest)
    targets = choose_targets(snapshot, spec, observed, count, known)
    pace = _set_pace(snapshot, spec, observed, targets.step, desired=count.desired)
    children = _list_children(settings, snapshot, spec, targets, pace)
    names = _find_taken_names(snapshot, children, now)
    inputs = StatusInputs(
        settings=settings,
        snapshot=snapshot,
        spec=spec,
        observed=observed,
        count=count,
        targets=targets,
        names=names,
    )
    full = render_full_status(inputs)
    looks = [*full.looks, *_list_looks(inputs, pace), *_list_count_looks(inputs, pin, rest)]
    return _put_together(inputs, full, children, pace, requeue_after=min(looks, default=None))


def _plan_refusal(snapshot: Snapshot, error: ValueError, now: float) -> Plan:
    """Return the status of a spec that cannot be read or served. Its children stay as they are."""
    old, observed = snapshot.status, _observe(snapshot, Moment(now))
    status = render_refused_status(snapshot.service, observed, error)
    return Plan(status=status if status != old else None, events=tuple(find_notes(old, status)))


def _observe(snapshot: Snapshot, moment: Moment) -> Observed:
    return observe(snapshot.pods, snapshot.owned(), snapshot.gateways.loads, moment)


def _find_rest(snapshot: Snapshot, spec: Spec, observed: Observed) -> Rest:
    old, deadline = snapshot.status, spec.rollout.progress_deadline_seconds
    return find_rest(snapshot.gateways.demand, old, observed, deadline)


def _decide_count(
    snapshot: Snapshot, spec: Spec, observed: Observed, *, pin: Pin | None, rest: Rest
) -> Count:
    return choose_count(
        spec,
        snapshot.status.get("scaling", {}),
        snapshot.advice,
        pin,
        running=observed.num_wanted,
        now=observed.moment.now,
        rest=rest,
    )


def _set_pace(snapshot: Snapshot, spec: Spec, observed: Observed, step: Step, *, desired: int) -> Pace:
    """Return how far each count may fall now. A rollout waits for no request: a leaving replica ends its own.

    Counts that fall come last. If an operator dies between two writes, no replica has been removed in
    favour of one that does not exist yet.
    """
    traffic = Traffic(
        now=observed.moment.now,
        patience=spec.pod.grace_seconds if len(step.counts) == 1 else 0.0,
        running=snapshot.advice.in_flight if snapshot.advice else {},
        loads=snapshot.gateways.loads,
        is_resting=spec.scaling.may_rest,
        departures=snapshot.nodes.departures,
        is_mark_refused=any(refused.kind == POD.kind for refused in snapshot.obstacles.refusals),
    )
    shrinks = {
        digest: plan_shrink(wanted, observed.state(digest).num_wanted, observed.pods_of(digest), traffic)
        for digest, wanted in step.counts.items()
    }
    counts = {digest: shrink.count for digest, shrink in shrinks.items()}
    return Pace(
        counts=dict(sorted(counts.items(), key=lambda one: one[1] < observed.state(one[0]).num_wanted)),
        num_placed=desired - observed.count_homeless(desired),
        marks=tuple(mark for shrink in shrinks.values() for mark in shrink.marks),
        is_waiting=any(shrink.is_waiting for shrink in shrinks.values()),
    )


def _list_children(
    settings: RenderSettings, snapshot: Snapshot, spec: Spec, targets: Targets, pace: Pace
) -> list[Child]:
    """Return the children that are to exist, each after those that it needs."""
    children = render_children(settings, snapshot.service, targets, pace.counts, pace.num_placed)
    pending = targets.known.pending
    if pending is not None:
        children += render_jobs(settings, snapshot, spec, pending, targets.progress.now)
    return children


def _find_taken_names(snapshot: Snapshot, children: Iterable[Child], now: float) -> TakenNames:
    foreign = snapshot.find_foreign(child.obj for child in children)
    left_over = find_left_over(snapshot.service, snapshot.list_namesakes() & foreign, now)
    return TakenNames(foreign=foreign - left_over, left_over=left_over)


def _list_looks(inputs: StatusInputs, pace: Pace) -> Iterator[float]:
    """Yield after how many seconds to plan again, apart from the status and the count."""
    snapshot, evacuation = inputs.snapshot, inputs.targets.evacuation
    yield from inputs.observed.changes_after()
    yield from list_job_looks(snapshot, inputs.spec, inputs.pending, inputs.now)
    if inputs.names.foreign or inputs.names.left_over:
        yield CONFLICT_RETRY_SECONDS
    if snapshot.obstacles.rivals:
        yield LOOK_SECONDS
    if pace.is_waiting:
        yield DRAIN_LOOK_SECONDS
    if evacuation.looks_again_at is not None:
        yield evacuation.looks_again_at - inputs.now


def _list_count_looks(inputs: StatusInputs, pin: Pin | None, rest: Rest) -> Iterator[float]:
    """Yield after how many seconds the pin lapses, or the service may rest."""
    scaling = inputs.spec.scaling
    if pin is not None:
        yield pin.until - inputs.now + 1
    elif scaling.may_rest and inputs.count.desired:
        after = scaling.rest_seconds
        left = after if rest.idle_since is None else rest.idle_since + after - inputs.now
        yield max(LEAST_LOOK_SECONDS, left)


def _put_together(
    inputs: StatusInputs, full: FullStatus, children: list[Child], pace: Pace, *, requeue_after: float | None
) -> Plan:
    snapshot, wanted = inputs.snapshot, [child.obj for child in children]
    return Plan(
        status=full.status if full.status != inputs.old else None,
        scale=inputs.count.desired if inputs.spec.lacks_count else None,
        events=tuple(find_notes(inputs.old, full.status)),
        marks=pace.marks,
        applies=tuple(find_applies(children, snapshot.owned(), inputs.names.all)),
        deletes=tuple(find_deletes(wanted, snapshot.service, snapshot.owned(), inputs.targets)),
        requeue_after=requeue_after,
        is_contested=is_scaled_by_others(wanted, snapshot.owned()),
        is_inherited=full.is_inherited,
        has_only_new_words=full.has_only_new_words,
        has_only_new_time=full.has_only_new_time,
    )
