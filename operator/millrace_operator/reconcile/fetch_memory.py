"""What a leader remembers of a service's downloads, and what is said of one until it has heard enough. Pure.

Status has few of a download's times, and none of the time in which nobody looked. So whoever begins to lead
calls nothing late before it knows whether that gets on: that takes two answers. It waits for them for a
deadline at most, from its own first look. What a former leader has called late stays so until it gets on.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from millrace_operator.cluster.kinds import JOB, Obj
from millrace_operator.reconcile.snapshot import Fetched, FetchMemory, JobProgress, Snapshot
from millrace_operator.resources.conditions import Reason, find_condition


def remember(
    before: FetchMemory | None,
    children: Iterable[Obj],
    job_pods: Iterable[Obj],
    fetched: Mapping[str, Fetched],
    now: float,
) -> FetchMemory:
    """Return what is known after a look at `now`, in seconds since 1970. Jobs that are gone are forgotten."""
    uids = {child["metadata"].get("uid", "") for child in children if child["kind"] == JOB.kind}
    jobs = {uid: job for uid, job in before.jobs.items() if uid in uids} if before else {}
    for uid, told in _list_answers(job_pods, fetched, uids):
        jobs[uid] = _hear(jobs.get(uid, JobProgress(now)), told)
    return FetchMemory(before.led_since if before else now, jobs)


def is_unheard(fetched: Fetched | None) -> bool:
    """Whether this leader has still to hear if a download gets on. `fetched` is what is told of its pod."""
    return fetched is None or fetched.is_first


def was_late(snapshot: Snapshot, condition: str, name: str) -> bool:
    """Whether that condition says that what has this name is late: a revision, or a Job."""
    told = find_condition(snapshot.service.get("status", {}), condition) or {}
    return told.get("reason") == Reason.DEADLINE_EXCEEDED and f" {name} " in f" {told.get('message', '')}"


def _list_answers(
    pods: Iterable[Obj], fetched: Mapping[str, Fetched], jobs: Collection[str]
) -> Iterator[tuple[str, Fetched]]:
    """Yield what is told of the pods of these Jobs, each with its Job's uid."""
    for pod in pods:
        told = fetched.get(pod["metadata"]["name"])
        for owner in pod["metadata"].get("ownerReferences", []) if told else []:
            if told and owner.get("controller") and owner.get("uid") in jobs:
                yield owner["uid"], told


def _hear(known: JobProgress, told: Fetched) -> JobProgress:
    """Return what is known of a Job after what is told of one of its pods."""
    if not told.gets_on:
        return known
    return known._replace(got_on_at=max(told.at, known.got_on_at or told.at))
