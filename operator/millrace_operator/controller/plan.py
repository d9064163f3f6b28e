"""What to do about one service. Pure; `reconcile.py` and `writer.py` act on it."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import ValidationError

from millrace_operator.api.annotations import find_active_pin
from millrace_operator.api.types import Spec
from millrace_operator.controller.children import Apply, Delete, find_applies, find_deletes, render_children
from millrace_operator.kube.kinds import POD
from millrace_operator.model.jobs import list_job_looks, render_jobs
from millrace_operator.observed.revisions import Moment, Observed, observe
from millrace_operator.observed.snapshot import ObjectId, Snapshot, find_left_over, object_id
from millrace_operator.render.settings import RenderSettings
from millrace_operator.rollout.requested_revision import find_revisions
from millrace_operator.rollout.surge import Step
from millrace_operator.rollout.targets import choose_targets
from millrace_operator.scaling.competing_autoscalers import LOOK_SECONDS, is_moved
from millrace_operator.scaling.count import Count, choose_count
from millrace_operator.scaling.drain import Mark, Traffic, plan_shrink
from millrace_operator.scaling.rest import Rest, find_rest
from millrace_operator.status.events import Note, find_notes
from millrace_operator.status.inputs import StatusInputs
from millrace_operator.status.refused_spec import render_refused_status
from millrace_operator.status.status import keep_hearsay, tell_status

CONFLICT_RETRY_SECONDS = 10.0
LEAST_LOOK_SECONDS = 2.0
"""Between two looks whether a service may rest, whatever its scaleToZeroAfter."""
DRAIN_LOOK_SECONDS = 1.0
"""Between two looks at the requests that a marked pod still has."""


@dataclass(frozen=True)
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
    is_moved: bool = False
    """Whether somebody else changed the count of a Deployment."""
    is_hearsay: bool = False
    """Whether status repeats what a former leader told, and the next plan may tell something else."""
    is_of_words: bool = False
    """Whether of the status words alone are new."""
    is_of_time: bool = False
    """Whether of the status the rollout's time alone is new."""

    def is_for_refused(self, refused: Collection[ObjectId]) -> bool:
        """Whether beside the status some of these are to be written, and nothing else."""
        writes = [object_id(write.obj) for write in self.list_writes()]
        return bool(writes) and not self.marks and all(identity in refused for identity in writes)

    def list_writes(self) -> list[Apply | Delete]:
        """Return what is to be written of children, in order."""
        return [*self.applies, *self.deletes]


class Counts(NamedTuple):
    """How far the Deployments may go now."""

    by_revision: dict[str, int]
    marks: tuple[Mark, ...]
    """Pods to mark before a count may fall further."""
    is_waiting: bool
    """Whether a marked pod has requests that are waited for."""


def plan(settings: RenderSettings, snapshot: Snapshot, now: float) -> Plan:
    """Return the writes that bring what is observed nearer to what is wanted. `now` is seconds since 1970."""
    metadata, old = snapshot.service["metadata"], snapshot.service.get("status", {})
    if "deletionTimestamp" in metadata:
        return Plan()  # garbage collection takes the children, whether we run or not
    try:
        spec = Spec.model_validate(snapshot.service["spec"])
        deadline = spec.rollout.progress_deadline_seconds
        moment = Moment(now, spec.rollout.scheduling_timeout_seconds)
        known = find_revisions(settings, snapshot, spec, now)
    except (ValidationError, ValueError) as error:
        status = render_refused_status(snapshot, error, now)
        return Plan(status=status if status != old else None, events=tuple(find_notes(old, status)))
    pin = find_active_pin(snapshot.service, now)
    observed = observe(snapshot, moment)
    rest = find_rest(snapshot.demand, old, observed, deadline)
    count = choose_count(
        spec, old.get("scaling", {}), snapshot.advice, pin, running=observed.num_wanted, now=now, rest=rest
    )
    targets = choose_targets(snapshot, spec, observed, count, known)
    counts = _plan_counts(snapshot, observed, targets.step, spec)
    ordered = _order_counts(counts.by_revision, observed)
    placed = count.desired - observed.count_homeless(count.desired)
    children = render_children(settings, snapshot.service, targets, ordered, placed)
    children += [] if known.pending is None else render_jobs(settings, snapshot, spec, known.pending, now)
    wanted = [child.obj for child in children]
    foreign = snapshot.find_foreign(wanted)
    left_over = find_left_over(snapshot.service, snapshot.list_namesakes() & foreign, now)
    inputs = StatusInputs(
        settings=settings,
        snapshot=snapshot,
        spec=spec,
        observed=observed,
        count=count,
        step=targets.step,
        choice=targets.choice,
        progress=targets.progress,
        target=targets.target,
        deadline_seconds=deadline,
        now=now,
        foreign=foreign - left_over,
        left_over=left_over,
        evacuation=targets.evacuation,
        unserved=known.error,
        pending=known.pending,
        model=known.model,
        spent_order=targets.spent_order,
    )
    told = tell_status(inputs, targets)
    status = told.status if snapshot.is_tried else keep_hearsay(told.status, old)
    looks = [
        *told.looks,
        *observed.changes_after(),
        *list_job_looks(snapshot, spec, known.pending, now),
        *([CONFLICT_RETRY_SECONDS] if foreign else []),
        *([LOOK_SECONDS] if snapshot.rivals else []),
        *([DRAIN_LOOK_SECONDS] if counts.is_waiting else []),
        *([] if targets.evacuation.looks_again_at is None else [targets.evacuation.looks_again_at - now]),
        *(_wait_for_rest(spec, count, rest, now) if pin is None else [pin.until - now + 1]),
    ]
    return Plan(
        status=status if status != old else None,
        scale=count.desired if spec.lacks_count else None,
        events=tuple(find_notes(old, status)),
        marks=counts.marks,
        applies=tuple(find_applies(children, snapshot, foreign)),
        deletes=tuple(find_deletes(wanted, snapshot, targets)),
        requeue_after=min(looks, default=None),
        is_moved=is_moved(wanted, snapshot.owned()),
        is_hearsay=status != told.status,
        is_of_words=told.is_of_words,
        is_of_time=told.is_of_time,
    )


def _plan_counts(snapshot: Snapshot, observed: Observed, step: Step, spec: Spec) -> Counts:
    """Return the counts for now. A rollout waits for no request: replicas finish them while they end."""
    running = snapshot.advice.in_flight if snapshot.advice else {}
    traffic = Traffic(
        observed.moment.now,
        spec.pod.grace_seconds if len(step.counts) == 1 else 0.0,
        running,
        snapshot.loads,
        is_resting=spec.scaling.may_rest,
        departures=snapshot.departures,
        is_mark_refused=any(refused.kind == POD.kind for refused in snapshot.refusals),
    )
    shrinks = {
        digest: plan_shrink(wanted, observed.state(digest).num_wanted, observed.pods_of(digest), traffic)
        for digest, wanted in step.counts.items()
    }
    return Counts(
        {digest: shrink.count for digest, shrink in shrinks.items()},
        tuple(mark for shrink in shrinks.values() for mark in shrink.marks),
        is_waiting=any(shrink.is_waiting for shrink in shrinks.values()),
    )


def _order_counts(counts: dict[str, int], observed: Observed) -> dict[str, int]:
    """Return them with what shrinks last.

    Where an operator dies between two writes, nothing was taken for what is not asked for yet.
    """
    return dict(sorted(counts.items(), key=lambda one: one[1] < observed.state(one[0]).num_wanted))


def _wait_for_rest(spec: Spec, count: Count, rest: Rest, now: float) -> list[float]:
    """Return after how many seconds to look whether a service may rest."""
    if not spec.scaling.may_rest or count.desired == 0:
        return []
    after = spec.scaling.rest_seconds
    return [max(LEAST_LOOK_SECONDS, after if rest.idle_since is None else rest.idle_since + after - now)]
