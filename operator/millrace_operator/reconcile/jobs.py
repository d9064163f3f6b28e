"""What a service's own Jobs are at, and what their pods say. Pure."""

from collections.abc import Iterable
from typing import Any

from millrace_operator.cluster.kinds import JOB, Obj
from millrace_operator.reconcile.causes import Cause, diagnose
from millrace_operator.reconcile.snapshot import ObjectId, Snapshot
from millrace_operator.resources.conditions import parse_time

LOST_SECONDS = 60.0
"""After its end, until a Job is made anew that has not done its work: its pod may have been deleted."""
_ENDS = frozenset({("Complete", "True"), ("Failed", "True")})


def find_job(snapshot: Snapshot, name: str) -> Obj:
    """Return the service's Job of that name; empty where there is none."""
    return snapshot.owned().get(ObjectId(JOB.kind, name), {})


def list_pods(snapshot: Snapshot, name: str) -> list[Obj]:
    """Return the pods of that Job. Labels alone can be anybody's."""
    uid = find_job(snapshot, name).get("metadata", {}).get("uid")
    return [pod for pod in snapshot.job_pods if uid and uid in _list_controllers(pod)]


def explain_delay(snapshot: Snapshot, name: str) -> Cause | None:
    """Return what keeps the Job from doing its work; None where it is on its way."""
    pods = list_pods(snapshot, name)
    causes = (diagnose(pod["metadata"]["name"], pod.get("status", {})) for pod in pods)
    return next((cause for cause in causes if cause is not None), None)


def is_complete(snapshot: Snapshot, name: str) -> bool:
    """Whether the Job has done its work."""
    return any(one.get("type") == "Complete" for one in _list_ends(find_job(snapshot, name)))


def seconds_to_loss(snapshot: Snapshot, name: str, now: float) -> float | None:
    """Return for how long to wait for the words of a Job that has ended; None while it runs."""
    ended = [parse_time(one.get("lastTransitionTime")) for one in _list_ends(find_job(snapshot, name))]
    return None if not ended else max(at or 0.0 for at in ended) + LOST_SECONDS - now


def _list_ends(job: Obj) -> Iterable[dict[str, Any]]:
    conditions = job.get("status", {}).get("conditions", [])
    return (one for one in conditions if (one.get("type"), one.get("status")) in _ENDS)


def _list_controllers(pod: Obj) -> set[str]:
    references = pod["metadata"].get("ownerReferences", [])
    return {reference.get("uid", "") for reference in references if reference.get("controller")}
