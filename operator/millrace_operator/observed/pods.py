"""The facts of a replica's pod that plans depend on. Pure; `causes.py` explains why it does not serve."""

from collections.abc import Container
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from millrace_operator.api.conditions import parse_time
from millrace_operator.kube.kinds import Obj
from millrace_operator.kube.node import may_stay
from millrace_operator.observed.fetch_run import FetchRun, read_fetch
from millrace_operator.observed.pod_status import find_condition, find_container, find_state
from millrace_operator.observed.snapshot import Fetched
from millrace_operator.render.model_source import MOUNT, VOLUME
from millrace_operator.status.causes import UNREADY_REASONS, Cause, diagnose, find_absent_claim
from millrace_runtime import contract

NO_FETCH = FetchRun(is_running=False, num_failures=0, ended_at=None)
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"


@dataclass(frozen=True, kw_only=True)
class Pod:
    """The facts of a pod that plans depend on."""

    name: str
    uid: str
    revision: str
    created: str
    is_ready: bool
    ready_since: float | None
    """When it became Ready, in seconds since 1970; None if it is not Ready."""
    has_started: bool
    is_terminating: bool
    """Whether it is being deleted."""
    has_ended: bool
    """Whether its containers ended for good, as after an eviction. It holds no room."""
    ends_by: float | None
    """When its grace is over, in seconds since 1970; None if it is not being deleted."""
    deletion_cost: str | None
    """The mark that a ReplicaSet reads: the pod with the lowest cost goes first."""
    leaving_since: float | None
    """When it was marked to leave, in seconds since 1970."""
    start_seconds: float | None
    """From its creation until it was Ready; None if it is not, or if its container was restarted."""
    unplaced: str | None
    """The scheduler's message about a pod without a node; None with a node, or before the first attempt."""
    unplaced_since: float | None
    """When the scheduler first failed, in seconds since 1970; None with a node."""
    placed_seconds: float | None
    """From its creation until it had a node; None without one."""
    cause: Cause | None
    is_running: bool = False
    """Whether its container runs, and so loads the model or has loaded it."""
    running_since: float | None = None
    """When its container started, in seconds since 1970; None if it does not run, or if that is unknown."""
    failed_at: float | None = None
    """When it ended for good, in seconds since 1970; None if it has not, or if that is unknown."""
    fetch: FetchRun = NO_FETCH
    """The kubelet's report of the container that fetches its model."""
    is_routable: bool = True
    """Whether requests reach it as soon as it is Ready: every gateway knows it, as far as they report."""
    node: str = ""
    """Its node; empty without one."""
    may_stay: bool = False
    """Whether it tolerates that its node is being emptied. A replacement could land there, too."""
    version: str | None = None
    """Its resourceVersion."""

    @property
    def is_fetching(self) -> bool:
        """Whether its model is being fetched."""
        return self.fetch.is_running

    @property
    def is_marked(self) -> bool:
        """Whether it is marked to leave. An operator of an older version removes only the cost."""
        return self.deletion_cost is not None or self.leaving_since is not None

    @property
    def is_staying(self) -> bool:
        """Whether it is neither being deleted nor ended."""
        return not (self.is_terminating or self.has_ended)

    @property
    def is_reached(self) -> bool:
        """Whether it is Ready, and requests reach it."""
        return self.is_ready and self.is_routable

    @property
    def created_at(self) -> float:
        """When it was created, in seconds since 1970."""
        return parse_time(self.created) or 0.0

    @property
    def ended_at(self) -> float:
        """When it ended, in seconds since 1970; when it was created, if the end is unknown."""
        return self.created_at if self.failed_at is None else self.failed_at

    def leaves_with(self, nodes: Container[str]) -> bool:
        """Whether it is on one of these nodes, which are being emptied, and has to leave."""
        return self.node in nodes and not self.may_stay

    @property
    def is_serving(self) -> bool:
        """Whether it is Ready, or was Ready and still runs. Such a replica is kept while a new one starts."""
        runs_on = self.has_started and (self.cause is None or self.cause.reason in UNREADY_REASONS)
        return self.is_staying and (self.is_ready or runs_on)


def describe_fetch(pod: Pod, fetched: Fetched | None) -> str:
    """Return in words that a pod fetches its model, its progress, and why it had to begin again."""
    far = f": {fetched.describe()}" if fetched else ""
    before = f"; it failed before: {pod.fetch.failure}" if pod.fetch.failure else ""
    return f"pod {pod.name} is fetching the model{far}{before}"


def read_pod(obj: Obj) -> Pod:
    """Return the facts of a raw pod."""
    metadata, status = obj["metadata"], obj.get("status", {})
    annotations = metadata.get("annotations", {})
    ready = find_condition(status, "Ready")
    is_ready = ready.get("status") == "True"
    container = find_container(status)
    has_ended = status.get("phase") in ("Succeeded", "Failed")
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        revision=metadata.get("labels", {}).get(contract.LABEL_REVISION, ""),
        created=metadata.get("creationTimestamp", ""),
        is_ready=is_ready,
        ready_since=parse_time(ready.get("lastTransitionTime")) if is_ready else None,
        has_started=bool(container.get("started")) and "running" in container.get("state", {}),
        is_terminating="deletionTimestamp" in metadata,
        has_ended=has_ended,
        ends_by=parse_time(metadata.get("deletionTimestamp")),
        deletion_cost=annotations.get(DELETION_COST),
        leaving_since=parse_time(annotations.get(contract.ANNOTATION_LEAVING)),
        unplaced=_read_refusal(status),
        unplaced_since=_read_refusal_time(metadata, status),
        placed_seconds=_measure(metadata.get("creationTimestamp"), find_condition(status, "PodScheduled")),
        start_seconds=_measure_start(metadata.get("creationTimestamp"), ready, container),
        cause=None if is_ready else _name_uri(obj, diagnose(metadata["name"], status)),
        is_running="running" in container.get("state", {}),
        running_since=parse_time((find_state(container, "running") or {}).get("startedAt")),
        failed_at=_find_end(status) if has_ended else None,
        fetch=read_fetch(status),
        node=obj.get("spec", {}).get("nodeName", ""),
        may_stay=may_stay(obj),
        version=metadata.get("resourceVersion"),
    )


def _name_uri(obj: Obj, cause: Cause | None) -> Cause | None:
    """Return the cause with the model's URI as in the spec: the pod's own message has its mount's path."""
    claims = (
        volume["persistentVolumeClaim"]["claimName"]
        for volume in obj.get("spec", {}).get("volumes", ())
        if volume.get("name") == VOLUME and "persistentVolumeClaim" in volume
    )
    claim = next(claims, None)
    if cause is None or claim is None:
        return cause
    return replace(cause, message=cause.message.replace(f"{MOUNT}/", f"pvc://{claim}/"))


def _find_end(status: dict[str, Any]) -> float | None:
    """Return the last time in a pod's status. The pod ended then or soon after."""
    ends = (find_state(one, "terminated") or {} for one in status.get("containerStatuses", []))
    texts = [status.get("startTime"), *(end.get("finishedAt") for end in ends)]
    texts += [condition.get("lastTransitionTime") for condition in status.get("conditions", [])]
    return max((at for at in map(parse_time, texts) if at is not None), default=None)


def _measure_start(created: str | None, ready: dict[str, Any], container: dict[str, Any]) -> float | None:
    return None if container.get("restartCount") else _measure(created, ready)


def _measure(created: str | None, condition: dict[str, Any]) -> float | None:
    """Return the time from a pod's creation until a condition was True; None if it is not."""
    since = condition.get("lastTransitionTime")
    if created is None or since is None or condition.get("status") != "True":
        return None
    return (datetime.fromisoformat(since) - datetime.fromisoformat(created)).total_seconds()


def _read_refusal(status: dict[str, Any]) -> str | None:
    """Return the scheduler's message for any reason: a pod without a node takes no requests.

    A pod whose claim is absent does not wait for room.
    """
    scheduled = find_condition(status, "PodScheduled")
    if find_absent_claim(status) is not None:
        return None
    return str(scheduled.get("message", "")) if scheduled.get("status") == "False" else None


def _read_refusal_time(metadata: dict[str, Any], status: dict[str, Any]) -> float | None:
    scheduled = find_condition(status, "PodScheduled")
    if _read_refusal(status) is None:
        return None
    return parse_time(scheduled.get("lastTransitionTime") or metadata.get("creationTimestamp"))
