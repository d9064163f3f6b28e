"""A revision that cannot be made yet, and what it waits for: a look, an answer, a claim or a fetch. Pure.

A model in a claim: a Job looks at it before its revision is made, if that is soon done. Only what the Job
reports may refuse the model. If there is no Job, or it fails or takes too long, the revision is made without
it, and its replicas find out.

The operator looks at the claim before it makes such a Job. A pod binds an unbound claim, and this pod would
choose the volume without regard to the replicas. A pod also keeps a claim that is being deleted, even when
the pod has ended. So the revision's record gets the Job's report at once, and the Job is deleted.
"""

from dataclasses import dataclass, replace
from enum import Enum, auto

from millrace_operator.api.conditions import Reason, parse_time
from millrace_operator.api.types import Spec
from millrace_operator.kube.kinds import CONTROLLER_REVISION, JOB, ObjectId
from millrace_operator.model.claims import judge_claim
from millrace_operator.model.found_model import CachedModel, FoundModel, find_place
from millrace_operator.observed.fetch_run import read_fetch
from millrace_operator.observed.snapshot import Claim, Fetched, Snapshot
from millrace_operator.render.child import fill_name, revision_name
from millrace_operator.render.model_source import find_claim
from millrace_operator.status.causes import Cause
from millrace_runtime import contract

AT_HAND_SECONDS = 60.0
"""From the Job's creation until the plan no longer waits for its report."""
DISTURBED_SECONDS = 180.0
"""The same if others delete Jobs, or delete their pods too early: time for two more."""


class Stage(Enum):
    """What a revision waits for."""

    LOOK = auto()
    """A Job that looks at the model in a claim, for a limited time."""
    RESOLVE = auto()
    """A Job that asks the model's source for the revision."""
    CLAIM = auto()
    """A claim into which the model can be fetched."""
    FILL = auto()
    """A Job that fetches the model into the claim."""
    NEVER = auto()
    """Nothing: the model is known, and no pod can serve it."""


@dataclass(frozen=True, kw_only=True)
class Pending:
    """A revision that cannot be made yet."""

    revision: str
    """The service's revision."""
    uri: str
    stage: Stage = Stage.RESOLVE
    cause: Cause | None = None
    """Why it takes so long, or why it is never made."""
    found: FoundModel | None = None
    """What is known of its model."""
    place: CachedModel | None = None
    """Where its model is to be kept."""
    fetched: Fetched | None = None
    """The progress of the Job that fetches it."""
    since: float | None = None
    """Since when its Job has made no progress, in seconds since 1970; None without a Job."""
    until: float | None = None
    """When the revision is made even without the Job; None if it needs the Job."""
    late: Cause | None = None
    """Why its Job is late, if it has made no progress for too long."""
    is_asked_again: bool = False
    """Whether the operator asks the source again, because no pod can serve the model."""
    known_as: str | None = None
    """`status.updateRevision` meanwhile, while it is unknown whether this is another revision."""

    @property
    def name(self) -> str:
        """`status.updateRevision`."""
        return self.known_as or self.revision

    @property
    def reason(self) -> Reason:
        """The reason of the wait, one word for programs."""
        return Reason.FETCHING if self.stage is Stage.FILL else Reason.RESOLVING

    @property
    def is_stuck(self) -> bool:
        """Whether the wait ends only when somebody acts."""
        return self.stage in (Stage.CLAIM, Stage.NEVER)

    def describe(self) -> str:
        """Return what it waits for, in words."""
        if self.stage is Stage.LOOK:
            return f"a Job looks at the model in PersistentVolumeClaim {find_claim(self.uri)}"
        if self.stage is not Stage.FILL or self.place is None:
            return f"a Job asks which revision {self.uri} has"
        far = f": {self.fetched.describe()}" if self.fetched else ""
        return f"a Job fetches the model into PersistentVolumeClaim {self.place.claim}{far}"


def find_looking(snapshot: Snapshot, spec: Spec, revision: str, now: float) -> Pending | None:
    """Return the wait for a Job that looks at a revision's model; None if the plan does not wait for one."""
    name = revision_name(snapshot.service, revision)
    if not _can_be_mounted(snapshot.model.claim, spec) or _is_barred(snapshot, name):
        return None
    pending = Pending(revision=revision, uri=spec.model.uri, stage=Stage.LOOK)
    job = snapshot.jobs.find(name)
    if not job or snapshot.jobs.is_lost(name):
        since = snapshot.model.looking_since
        return None if since is None or now >= since + DISTURBED_SECONDS else pending
    if snapshot.jobs.is_finished(name) or snapshot.jobs.explain_delay(name) is not None:
        return None
    made = parse_time(job["metadata"].get("creationTimestamp"))
    # By the API server's clock. If ours differs by more than that, the duration is unknown.
    is_due = made is not None and abs(now - made) >= AT_HAND_SECONDS
    return None if is_due else replace(pending, until=None if made is None else made + AT_HAND_SECONDS)


def _can_be_mounted(claim: Claim | None, spec: Spec) -> bool:
    if claim is None or claim.name != find_claim(spec.model.uri):
        return False
    return claim.is_bound and not claim.is_leaving


def _is_barred(snapshot: Snapshot, name: str) -> bool:
    """Whether the Job can't be made: the API server refuses it or the record, or another object has its name.

    A refused record means that the revision was to be made without the Job. Objects of an earlier service of
    this name don't count, because they go soon.
    """
    kinds = (JOB.kind, CONTROLLER_REVISION.kind)
    refused = {ObjectId(kind, name) for kind in kinds} & snapshot.obstacles.refusals.keys()
    heads = [{"kind": kind, "metadata": {"name": name}} for kind in kinds]
    return bool(refused) or bool(snapshot.find_foreign(heads) - snapshot.list_namesakes())


def find_filling(
    snapshot: Snapshot, spec: Spec, revision: str, found: FoundModel, now: float
) -> Pending | None:
    """Return what the revision of a known model waits for; None if its pods can have the model."""
    place = find_place(spec.model, found)
    if place is None:
        return None
    fault = judge_claim(spec, snapshot.model.claim)
    if fault is not None:
        return Pending(
            revision=revision, uri=spec.model.uri, stage=Stage.CLAIM, cause=fault, found=found, place=place
        )
    name = fill_name(snapshot.service, revision)
    if spec.model.cache.is_on_nodes or snapshot.jobs.is_complete(name):
        return None
    fetched = _find_progress(snapshot, name)
    pending = Pending(
        revision=revision,
        uri=spec.model.uri,
        stage=Stage.FILL,
        cause=snapshot.jobs.explain_delay(name),
        found=found,
        place=place,
        fetched=fetched,
    )
    return find_lateness(pending, snapshot, spec, name, now)


def find_lateness(pending: Pending, snapshot: Snapshot, spec: Spec, job: str, now: float) -> Pending:
    """Return the pending revision, with the time since when its Job has stalled, and why it is late."""
    is_filling = pending.stage is Stage.FILL
    since = snapshot.jobs.find_standstill(job, now) if is_filling else snapshot.jobs.find_made(job)
    pending = replace(pending, since=since)
    is_late = since is not None and now >= since + spec.rollout.progress_deadline_seconds
    return replace(pending, late=_explain_lateness(pending, snapshot, spec, job)) if is_late else pending


def is_begun(snapshot: Snapshot, revision: str) -> bool:
    """Whether a revision was made, or its model is being fetched into a claim. Then no node can refuse it."""
    name = revision_name(snapshot.service, revision)
    record = snapshot.owned().get(ObjectId(CONTROLLER_REVISION.kind, name))
    labels = None if record is None else record["metadata"].get("labels", {})
    is_made = labels is not None and labels.get(contract.LABEL_PENDING) != "true"
    return is_made or bool(snapshot.jobs.find(fill_name(snapshot.service, revision)))


def seconds_to_lateness(spec: Spec, pending: Pending, now: float) -> float | None:
    """Return after how many seconds a stalled Job is late; None if it is late, or if there is none."""
    if pending.since is None or pending.late is not None:
        return None
    return pending.since + spec.rollout.progress_deadline_seconds - now


def _find_progress(snapshot: Snapshot, name: str) -> Fetched | None:
    """Return the progress of the Job's newest pod that reports it."""
    names = (pod["metadata"]["name"] for pod in snapshot.jobs.list_working(name))
    return next((snapshot.model.fetched[pod] for pod in names if pod in snapshot.model.fetched), None)


def _explain_lateness(pending: Pending, snapshot: Snapshot, spec: Spec, job: str) -> Cause:
    place = f"{job} -n {snapshot.service['metadata']['namespace']}"
    failures = (read_fetch(pod.get("status", {})).failure for pod in snapshot.jobs.list_working(job))
    before = next((f"; it failed before: {failure}" for failure in failures if failure), "")
    return Cause(
        Reason.DEADLINE_EXCEEDED,
        f"Job {job} has made no progress for longer than rollout.progressDeadline "
        f"({spec.rollout.progress_deadline}): {pending.describe()}{before}; see kubectl describe job "
        f"{place}, which says where a quota refuses its pod, and its pod's Events and log",
    )
