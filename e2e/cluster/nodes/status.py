"""What a pod's worker knows, as a PodStatus. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from e2e.cluster.nodes.events import timestamp

Object = dict[str, Any]


@dataclass(frozen=True)
class Waiting:
    """Not started, and why."""

    reason: str = "ContainerCreating"
    message: str = ""


@dataclass(frozen=True)
class Running:
    """Started."""

    since: datetime


@dataclass(frozen=True)
class Terminated:
    """Ended."""

    exit_code: int
    reason: str
    message: str
    started: datetime
    finished: datetime
    container_id: str


@dataclass
class ContainerRecord:
    """All that status shows of one container."""

    name: str
    image: str
    state: Waiting | Running | Terminated = field(default_factory=Waiting)
    last: Terminated | None = None
    restart_count: int = 0
    container_id: str = ""
    is_started: bool = False
    is_ready: bool = False


@dataclass(frozen=True)
class PodFacts:
    """What is true of a pod besides its containers."""

    pod_ip: str
    host_ip: str
    started: datetime
    is_initialized: bool
    is_ending: bool = False
    failure: tuple[str, str] | None = None
    """Reason and message of a pod that was refused or evicted for good."""


def end_reason(exit_code: int) -> str:
    """A terminated container's reason."""
    return "Completed" if exit_code == 0 else "Error"


def decide_phase(
    policy: str, init: list[ContainerRecord], main: list[ContainerRecord], facts: PodFacts
) -> str:
    """The pod's phase as a kubelet counts it."""
    if facts.failure is not None:
        return "Failed"
    if not facts.is_initialized:
        failed = any(isinstance(each.state, Terminated) and each.state.exit_code for each in init)
        return "Failed" if failed and (policy == "Never" or facts.is_ending) else "Pending"
    ends = [each.state for each in main if isinstance(each.state, Terminated)]
    if len(ends) == len(main) and (policy != "Always" or facts.is_ending):
        is_failed = any(end.exit_code for end in ends)
        return (
            "Running"
            if is_failed and policy == "OnFailure" and not facts.is_ending
            else ("Failed" if is_failed else "Succeeded")
        )
    has_begun = all(not isinstance(each.state, Waiting) or each.last is not None for each in main)
    return "Running" if has_begun else "Pending"


def render_status(
    pod: Object, init: list[ContainerRecord], main: list[ContainerRecord], facts: PodFacts, now: datetime
) -> Object:
    """The part of PodStatus that a kubelet writes; conditions keep their times while they do not change."""
    phase = decide_phase(pod["spec"].get("restartPolicy", "Always"), init, main, facts)
    status: Object = {
        "phase": phase,
        "observedGeneration": pod["metadata"].get("generation"),
        "conditions": _conditions(pod, main, facts, phase, now),
        "hostIP": facts.host_ip,
        "hostIPs": [{"ip": facts.host_ip}],
        "startTime": timestamp(facts.started),
        "containerStatuses": [_container(record) for record in main],
    }
    if facts.pod_ip:
        status |= {"podIP": facts.pod_ip, "podIPs": [{"ip": facts.pod_ip}]}
    if init:
        status["initContainerStatuses"] = [_container(record, is_init=True) for record in init]
    if facts.failure is not None:
        status |= {"reason": facts.failure[0], "message": facts.failure[1]}
    return status


def _conditions(
    pod: Object, main: list[ContainerRecord], facts: PodFacts, phase: str, now: datetime
) -> list[Object]:
    unready = [record.name for record in main if not record.is_ready]
    is_over = phase in ("Succeeded", "Failed")
    why: dict[str, Any] = {}
    if is_over:
        why = {"reason": "PodCompleted" if phase == "Succeeded" else "PodFailed"}
    elif unready:
        why = {
            "reason": "ContainersNotReady",
            "message": f"containers with unready status: [{' '.join(unready)}]",
        }
    gates = pod["spec"].get("readinessGates", ())
    held = [gate["conditionType"] for gate in gates if not _is_true(pod, gate["conditionType"])]
    gated = why or ({"reason": "ReadinessGatesNotReady", "message": f"waits for {held}"} if held else {})
    incomplete = {} if facts.is_initialized else {"reason": "ContainersNotInitialized"}
    wanted = [
        ("PodReadyToStartContainers", bool(facts.pod_ip) and not is_over, {}),
        ("Initialized", facts.is_initialized, incomplete),
        ("Ready", not gated, gated),
        ("ContainersReady", not why, why),
        ("PodScheduled", True, {}),
    ]
    return [_condition(pod, kind, is_true, extra, now) for kind, is_true, extra in wanted]


def _is_true(pod: Object, kind: str) -> bool:
    found = pod.get("status", {}).get("conditions", ())
    return any(each["type"] == kind and each["status"] == "True" for each in found)


def _condition(pod: Object, kind: str, is_true: bool, why: Mapping[str, Any], now: datetime) -> Object:  # noqa: FBT001
    before: Object = next(
        (each for each in pod.get("status", {}).get("conditions", ()) if each["type"] == kind), {}
    )
    same = before.get("status") == str(is_true) and before.get("lastTransitionTime")
    return {
        "type": kind,
        "status": str(is_true),
        "lastTransitionTime": before["lastTransitionTime"] if same else timestamp(now),
        "lastProbeTime": None,
        "reason": why.get("reason"),
        "message": why.get("message"),
        "observedGeneration": pod["metadata"].get("generation"),
    }


def _container(record: ContainerRecord, *, is_init: bool = False) -> Object:
    is_done = isinstance(record.state, Terminated) and record.state.exit_code == 0
    return {
        "name": record.name,
        "image": record.image,
        "imageID": f"process://{record.image}" if record.container_id else "",
        "containerID": record.container_id,
        "restartCount": record.restart_count,
        "ready": is_done if is_init else record.is_ready,
        "started": record.is_started,
        "state": _state(record.state),
        "lastState": _state(record.last) if record.last else {},
    }


def _state(state: Waiting | Running | Terminated) -> Object:
    if isinstance(state, Waiting):
        return {"waiting": {"reason": state.reason, "message": state.message}}
    if isinstance(state, Running):
        return {"running": {"startedAt": timestamp(state.since)}}
    return {
        "terminated": {
            "exitCode": state.exit_code,
            "reason": state.reason,
            "message": state.message,
            "startedAt": timestamp(state.started),
            "finishedAt": timestamp(state.finished),
            "containerID": state.container_id,
        }
    }


def observed_restarts(pod: Object, name: str) -> int:
    """How often the API server knows a container to have been started, before this node process began."""
    seen = pod.get("status", {}).get("containerStatuses", ())
    found: Object = next((each for each in seen if each["name"] == name), {})
    return int(found.get("restartCount", 0)) + (1 if found.get("containerID") else 0)
