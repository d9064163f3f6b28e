"""What a service's own Jobs are at, and what their pods say. Pure."""

from collections.abc import Iterable
from typing import Any

from millrace_operator.cluster.kinds import JOB, Obj
from millrace_operator.reconcile.causes import Cause, diagnose
from millrace_operator.reconcile.fetch_memory import is_unheard, was_late
from millrace_operator.reconcile.pod_status import find_fetcher, find_state, is_getting_on
from millrace_operator.reconcile.snapshot import Fetched, ObjectId, Snapshot
from millrace_operator.resources.conditions import parse_time

LOST_SECONDS = 60.0
"""After its end, until a Job is made anew that has not done its work: its pod may have been deleted."""
UNREAD_SECONDS = 3600.0
"""The same of one that told what can't be read."""
_ENDS = frozenset({("Complete", "True"), ("Failed", "True")})


def find_job(snapshot: Snapshot, name: str) -> Obj:
    """Return the service's Job of that name; empty where there is none."""
    return snapshot.owned().get(ObjectId(JOB.kind, name), {})


def list_pods(snapshot: Snapshot, name: str) -> list[Obj]:
    """Return the pods of that Job. Labels alone can be anybody's."""
    uid = find_job(snapshot, name).get("metadata", {}).get("uid")
    return [pod for pod in snapshot.job_pods if uid and uid in _list_controllers(pod)]


def list_working(snapshot: Snapshot, name: str) -> list[Obj]:
    """Return the pods of that Job that work, the newest first; those that failed or end, where none does."""
    pods = sorted(list_pods(snapshot, name), key=_created, reverse=True)
    return [pod for pod in pods if not _is_over(pod)] or pods


def explain_delay(snapshot: Snapshot, name: str) -> Cause | None:
    """Return what keeps the Job from doing its work; None where it is on its way."""
    pods = [pod for pod in list_working(snapshot, name) if not _gets_on(snapshot, pod)]
    causes = (diagnose(pod["metadata"]["name"], pod.get("status", {})) for pod in pods)
    return next((cause for cause in causes if cause is not None), None)


def is_complete(snapshot: Snapshot, name: str) -> bool:
    """Whether the Job has done its work. A container that others added to its pod may run on for ever."""
    ends = _list_ends(find_job(snapshot, name))
    return any(one.get("type") == "Complete" for one in ends) or any(map(_is_done, list_pods(snapshot, name)))


def has_told_all(snapshot: Snapshot, name: str) -> bool:
    """Whether nothing more will come of the Job: its container has done its work, or the Job is given up."""
    has_failed = any(one.get("type") == "Failed" for one in _list_ends(find_job(snapshot, name)))
    return has_failed or any(map(_is_done, list_pods(snapshot, name)))


def is_lost(snapshot: Snapshot, name: str) -> bool:
    """Whether the Job is complete, and the pod is gone that alone knew what it found."""
    has_ended = any(one.get("type") == "Complete" for one in _list_ends(find_job(snapshot, name)))
    return has_ended and not list_pods(snapshot, name)


def find_words(snapshot: Snapshot, name: str) -> str | None:
    """Return what the container of a Job's pod told that has done its work; None where none has."""
    ends = (
        find_state(find_fetcher(pod.get("status", {})), "terminated") for pod in list_pods(snapshot, name)
    )
    told = (str(end.get("message", "")) for end in ends if end is not None and end.get("exitCode") == 0)
    return next(told, None)


def find_made(snapshot: Snapshot, name: str) -> float | None:
    """Return when the Job was made, in seconds since 1970; None where there is none."""
    return parse_time(find_job(snapshot, name).get("metadata", {}).get("creationTimestamp"))


def find_standstill(snapshot: Snapshot, name: str, fetched: Fetched | None) -> float | None:
    """Return since when a Job that fetches a model has got no farther; None where there is none.

    `fetched` is what is told of its newest pod. A leader that has still to hear whether it gets on counts
    from its own first look, or from the first answer, unless the Job is called late already.
    """
    made = find_made(snapshot, name)
    if made is None:
        return None
    job = snapshot.memory.jobs.get(find_job(snapshot, name)["metadata"].get("uid", ""))
    if job is not None and job.got_on_at is not None:
        return max(made, job.got_on_at)
    if was_late(snapshot, "Degraded", name):
        return made
    if fetched is None or is_unheard(fetched):
        return max(made, snapshot.memory.led_since, made if job is None else job.first_at)
    return max(made, fetched.at)


def seconds_to_loss(snapshot: Snapshot, name: str, now: float) -> float | None:
    """Return for how long to wait for the words of a Job that has ended; None while it runs.

    Where it told something, that can't be read: another one would tell the same.
    """
    wait = LOST_SECONDS if find_words(snapshot, name) is None else UNREAD_SECONDS
    ended = [parse_time(one.get("lastTransitionTime")) for one in _list_ends(find_job(snapshot, name))]
    return None if not ended else max(at or 0.0 for at in ended) + wait - now


def _list_ends(job: Obj) -> Iterable[dict[str, Any]]:
    conditions = job.get("status", {}).get("conditions", [])
    return (one for one in conditions if (one.get("type"), one.get("status")) in _ENDS)


def _created(pod: Obj) -> str:
    return str(pod["metadata"].get("creationTimestamp", ""))


def _gets_on(snapshot: Snapshot, pod: Obj) -> bool:
    return is_getting_on(pod.get("status", {}), snapshot.fetched.get(pod["metadata"]["name"]))


def _is_over(pod: Obj) -> bool:
    return "deletionTimestamp" in pod["metadata"] or pod.get("status", {}).get("phase") == "Failed"


def _is_done(pod: Obj) -> bool:
    ended = find_state(find_fetcher(pod.get("status", {})), "terminated")
    return ended is not None and ended.get("exitCode") == 0


def _list_controllers(pod: Obj) -> set[str]:
    references = pod["metadata"].get("ownerReferences", [])
    return {reference.get("uid", "") for reference in references if reference.get("controller")}
