"""The state of a service's own Jobs, and the reports of their pods. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from millrace_operator.api.conditions import parse_time
from millrace_operator.kube.kinds import Obj
from millrace_operator.observed.fetch_run import find_fetch_time, read_fetch
from millrace_operator.observed.pod_status import find_fetcher, find_state
from millrace_operator.status.causes import Cause, diagnose
from millrace_runtime import contract

LOST_SECONDS = 60.0
"""For so long after its end a Job without a result is kept. Then it is created again."""
_ENDS = frozenset({("Complete", "True"), ("Failed", "True")})


class Jobs:
    """A service's own Jobs by name, and the pods that may be theirs."""

    def __init__(self, objects: Mapping[str, Obj], pods: Iterable[Obj]) -> None:
        self._objects = objects
        self._pods = tuple(pods)

    def find(self, name: str) -> Obj:
        """Return the service's Job of that name; empty if there is none."""
        return self._objects.get(name, {})

    def list_pods(self, name: str) -> list[Obj]:
        """Return the pods of that Job, by their owner: anybody may use its labels."""
        uid = self.find(name).get("metadata", {}).get("uid")
        return [pod for pod in self._pods if uid and uid in _list_controllers(pod)]

    def list_working(self, name: str) -> list[Obj]:
        """Return the working pods of that Job, the newest first; if none works, the failed ones."""
        pods = sorted(self.list_pods(name), key=_created, reverse=True)
        return [pod for pod in pods if not _is_over(pod)] or pods

    def explain_delay(self, name: str) -> Cause | None:
        """Return what keeps the Job from its work; None if nothing does."""
        causes = (
            diagnose(pod["metadata"]["name"], pod.get("status", {}), is_asking=not _is_filler(pod))
            for pod in self.list_working(name)
        )
        return next((cause for cause in causes if cause is not None), None)

    def is_complete(self, name: str) -> bool:
        """Whether the Job has done its work. A container that others added to its pod may run for ever."""
        ends = _list_ends(self.find(name))
        return any(one.get("type") == "Complete" for one in ends) or any(map(_is_done, self.list_pods(name)))

    def is_finished(self, name: str) -> bool:
        """Whether the Job will report nothing more: its container has succeeded, or the Job has failed."""
        has_failed = any(one.get("type") == "Failed" for one in _list_ends(self.find(name)))
        return has_failed or any(map(_is_done, self.list_pods(name)))

    def is_lost(self, name: str) -> bool:
        """Whether the Job is complete, and the only pod that had its result is gone."""
        has_ended = any(one.get("type") == "Complete" for one in _list_ends(self.find(name)))
        return has_ended and not self.list_pods(name)

    def find_report_text(self, name: str) -> str | None:
        """Return the report of a container of the Job that has done its work; None without one."""
        ends = (find_state(find_fetcher(pod.get("status", {})), "terminated") for pod in self.list_pods(name))
        reports = (
            str(end.get("message", "")) for end in ends if end is not None and end.get("exitCode") == 0
        )
        return next(reports, None)

    def find_made(self, name: str) -> float | None:
        """Return when the Job was created, in seconds since 1970; None if there is none."""
        return parse_time(self.find(name).get("metadata", {}).get("creationTimestamp"))

    def find_standstill(self, name: str, now: float) -> float | None:
        """Return since when a fetching Job has stalled; `now` while it makes progress, None without a Job."""
        made = self.find_made(name)
        if made is None:
            return None
        pods = self.list_pods(name)
        num_failed = sum(pod.get("status", {}).get("phase") == "Failed" for pod in pods)
        runs = (read_fetch(pod.get("status", {})) for pod in pods if not _is_over(pod))
        return max(made, find_fetch_time(runs, num_failed, now) or made)

    def seconds_to_loss(self, name: str, now: float) -> float | None:
        """Return for how long to wait for the report of a Job that has ended; None while it runs."""
        ended = [parse_time(one.get("lastTransitionTime")) for one in _list_ends(self.find(name))]
        return None if not ended else max(at or 0.0 for at in ended) + LOST_SECONDS - now


def _list_ends(job: Obj) -> Iterable[dict[str, Any]]:
    conditions = job.get("status", {}).get("conditions", [])
    return (one for one in conditions if (one.get("type"), one.get("status")) in _ENDS)


def _created(pod: Obj) -> str:
    return str(pod["metadata"].get("creationTimestamp", ""))


def _is_filler(pod: Obj) -> bool:
    component = pod["metadata"].get("labels", {}).get(contract.LABEL_COMPONENT)
    return bool(component == contract.COMPONENT_FILLER)


def _is_over(pod: Obj) -> bool:
    return "deletionTimestamp" in pod["metadata"] or pod.get("status", {}).get("phase") == "Failed"


def _is_done(pod: Obj) -> bool:
    ended = find_state(find_fetcher(pod.get("status", {})), "terminated")
    return ended is not None and ended.get("exitCode") == 0


def _list_controllers(pod: Obj) -> set[str]:
    references = pod["metadata"].get("ownerReferences", [])
    return {reference.get("uid", "") for reference in references if reference.get("controller")}
