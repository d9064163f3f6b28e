"""A model in a claim: a Job looks at it before its revision is made, if that is soon done. Pure.

What the Job tells may refuse the model. Nothing else may: where there is no Job, or it fails or takes too
long, the revision is made without, and its replicas find out. The operator looks at the claim first. A pod
binds a claim that is not bound yet, and this one would choose its volume without a thought of the replicas. A
pod keeps a claim that is being deleted from going.

The pod of a look keeps it too, also when it has ended. So what it told is in the revision's record at once,
and the Job is deleted.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from millrace_operator.api.conditions import Reason, find_condition, parse_time
from millrace_operator.api.types import Spec
from millrace_operator.kube.kinds import CONTROLLER_REVISION, DEPLOYMENT, JOB, Obj
from millrace_operator.model.pending_revision import Pending, Stage
from millrace_operator.observed.snapshot import ObjectId, Snapshot, is_owned, object_id
from millrace_operator.render.metadata import revision_name
from millrace_operator.render.model_source import find_claim
from millrace_operator.rollout.requested_revision import find_asked
from millrace_operator.rollout.revision import read_revisions

AT_HAND_SECONDS = 60.0
"""From the Job's creation, until nobody waits any longer for what it tells."""
DISTURBED_SECONDS = 180.0
"""The same where others delete Jobs, or their pods before these were seen to end: time for two more."""
_REFUSED = frozenset({Reason.DOES_NOT_FIT, Reason.MODEL_INVALID, Reason.SETTINGS_INVALID})


class Awaited(NamedTuple):
    """A look that a service waits for."""

    claim: str
    revision: str
    is_new: bool
    """Whether the wait begins now: status says that the model was refused, by what is lost if it is lost."""
    has_job: bool
    """Whether the Job that looks is there."""


def find_awaited(service: Obj, spec: Spec, children: Iterable[Obj]) -> Awaited | None:
    """Return the look at a model in a claim whose revision is still to be made; None of any other."""
    claim = find_claim(spec.model.uri)
    if claim is None:
        return None
    own = {object_id(child): child for child in children if is_owned(child, service["metadata"]["uid"])}
    name = revision_name(service, find_asked(service, spec, read_revisions(own.values())).hash)
    if own.keys() & {ObjectId(CONTROLLER_REVISION.kind, name), ObjectId(DEPLOYMENT.kind, name)}:
        return None
    has_job = ObjectId(JOB.kind, name) in own
    condition = find_condition(service.get("status", {}), "ModelReady") or {}
    return Awaited(claim, name, condition.get("reason") in _REFUSED, has_job)


def find_looking(snapshot: Snapshot, spec: Spec, revision: str, now: float) -> Pending | None:
    """Return that a Job looks at the model of a revision, or is to; None where nobody waits for it."""
    name = revision_name(snapshot.service, revision)
    if not _can_be_mounted(snapshot, spec) or _is_barred(snapshot, name):
        return None
    pending, job = Pending(revision, spec.model.uri, Stage.LOOK), snapshot.jobs.find(name)
    if not job or snapshot.jobs.is_lost(name):
        since = snapshot.looking_since
        return None if since is None or now >= since + DISTURBED_SECONDS else pending
    if snapshot.jobs.has_told_all(name) or snapshot.jobs.explain_delay(name) is not None:
        return None
    made = parse_time(job["metadata"].get("creationTimestamp"))
    # By the API server's clock. Where ours goes wrong by more than that, nobody can tell how long it takes.
    is_due = made is not None and abs(now - made) >= AT_HAND_SECONDS
    return None if is_due else replace(pending, until=None if made is None else made + AT_HAND_SECONDS)


def _can_be_mounted(snapshot: Snapshot, spec: Spec) -> bool:
    claim = snapshot.claim
    if claim is None or claim.name != find_claim(spec.model.uri):
        return False
    return claim.is_bound and not claim.is_leaving


def _is_barred(snapshot: Snapshot, name: str) -> bool:
    """Whether the Job can't be made. A refused record says that the revision was to be made without it.

    A Job of another service that had the name is no bar: it goes soon.
    """
    head = {"kind": JOB.kind, "metadata": {"name": name}}
    refused = {ObjectId(JOB.kind, name), ObjectId(CONTROLLER_REVISION.kind, name)} & snapshot.refusals.keys()
    return bool(refused) or bool(snapshot.find_foreign([head]) - snapshot.list_namesakes())
