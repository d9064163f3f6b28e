"""Which revision a model's source has: told by a Job's pod, and from then on the same for all replicas. Pure.

The operator calls no address that a tenant chose and reads no Secret. So a Job in the service's namespace
asks.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from millrace_operator.cluster.kinds import JOB, Obj
from millrace_operator.reconcile.causes import Cause, diagnose
from millrace_operator.reconcile.found_model import FoundModel
from millrace_operator.reconcile.pod_status import find_fetcher, find_state
from millrace_operator.reconcile.render.metadata import revision_name
from millrace_operator.reconcile.snapshot import ObjectId, Snapshot
from millrace_operator.resources.conditions import parse_time

LOST_SECONDS = 60.0
"""After its end, until a Job is made anew that has left no word: its pod may have been deleted."""


@dataclass(frozen=True)
class Pending:
    """A revision that cannot be made yet, as nobody has told which revision of its model there is."""

    revision: str
    """Of the service."""
    uri: str
    cause: Cause | None = None
    """Why it takes so long, or why it is never made."""
    found: FoundModel | None = None
    """Of a model that is known, and that no pod can serve."""

    def describe(self) -> str:
        """Return what is waited for."""
        return f"a Job asks which revision {self.uri} has"


def find_model(snapshot: Snapshot, revision: str) -> FoundModel | None:
    """Return what the Job of a service's revision has found; None while it has not."""
    told = (_read_told(pod) for pod in _list_pods(snapshot, revision))
    return next((found for found in told if found is not None), None)


def explain_delay(snapshot: Snapshot, revision: str) -> Cause | None:
    """Return what keeps the Job from finding it; None where it is on its way."""
    pods = _list_pods(snapshot, revision)
    causes = (diagnose(pod["metadata"]["name"], pod.get("status", {})) for pod in pods)
    return next((cause for cause in causes if cause is not None), None)


def seconds_to_loss(snapshot: Snapshot, revision: str, now: float) -> float | None:
    """Return for how long to wait for the words of a Job that has ended; None while it runs."""
    job = _find_job(snapshot, revision)
    ended = [parse_time(one.get("lastTransitionTime")) for one in _list_ends(job)]
    return None if not ended else max(at or 0.0 for at in ended) + LOST_SECONDS - now


def _find_job(snapshot: Snapshot, revision: str) -> Obj:
    return snapshot.owned().get(ObjectId(JOB.kind, revision_name(snapshot.service, revision)), {})


def _list_ends(job: Obj) -> Iterable[dict[str, Any]]:
    ends = {("Complete", "True"), ("Failed", "True")}
    conditions = job.get("status", {}).get("conditions", [])
    return (one for one in conditions if (one.get("type"), one.get("status")) in ends)


def _list_pods(snapshot: Snapshot, revision: str) -> list[Obj]:
    """Return the pods of that Job. Labels alone can be anybody's."""
    uid = _find_job(snapshot, revision).get("metadata", {}).get("uid")
    return [pod for pod in snapshot.resolvers if uid and uid in _list_controllers(pod)]


def _list_controllers(pod: Obj) -> set[str]:
    references = pod["metadata"].get("ownerReferences", [])
    return {reference.get("uid", "") for reference in references if reference.get("controller")}


def _read_told(pod: Obj) -> FoundModel | None:
    ended = find_state(find_fetcher(pod.get("status", {})), "terminated") or {}
    if ended.get("exitCode") != 0:
        return None
    try:
        return FoundModel.read(json.loads(ended.get("message", "")))
    except (ValueError, RecursionError):
        return None
