"""What a pod's worker knows, as a PodStatus: its phase, its conditions, its containers. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from e2e.cluster.nodes.container_record import ContainerRecord, Terminated, Waiting
from e2e.cluster.nodes.container_status import render_container, render_init_container
from e2e.cluster.nodes.events import timestamp

Object = dict[str, Any]


@dataclass(frozen=True)
class Failure:
    """Why a pod has failed for good, as its status shows it."""

    reason: str
    message: str


@dataclass(frozen=True)
class PodFacts:
    """All that is known of a pod on its node."""

    pod_ip: str
    host_ip: str
    started: datetime
    is_initialized: bool
    main: Sequence[ContainerRecord]
    init: Sequence[ContainerRecord] = ()
    is_ending: bool = False
    """It is being deleted, so nothing starts again."""
    failure: Failure | None = None


def render_status(pod: Object, facts: PodFacts, now: datetime) -> Object:
    """Return the part of PodStatus that a kubelet writes."""
    phase = decide_phase(pod["spec"].get("restartPolicy", "Always"), facts)
    status: Object = {
        "phase": phase,
        "observedGeneration": pod["metadata"].get("generation"),
        "conditions": [
            _render_condition(pod, condition, now) for condition in decide_conditions(facts, phase)
        ],
        "hostIP": facts.host_ip,
        "hostIPs": [{"ip": facts.host_ip}],
        "startTime": timestamp(facts.started),
        "containerStatuses": [render_container(record) for record in facts.main],
    }
    if facts.pod_ip:
        status |= {"podIP": facts.pod_ip, "podIPs": [{"ip": facts.pod_ip}]}
    if facts.init:
        status["initContainerStatuses"] = [render_init_container(record) for record in facts.init]
    if facts.failure is not None:
        status |= {"reason": facts.failure.reason, "message": facts.failure.message}
    return status


def decide_phase(policy: str, facts: PodFacts) -> str:
    """Return the pod's phase as a kubelet counts it."""
    if facts.failure is not None:
        return "Failed"
    if not facts.is_initialized:
        is_over = policy == "Never" or facts.is_ending
        return "Failed" if is_over and any(map(_has_failed, facts.init)) else "Pending"
    if all(isinstance(each.state, Terminated) for each in facts.main):
        return _decide_ended_phase(policy, facts)
    has_begun = all(not isinstance(each.state, Waiting) or each.last is not None for each in facts.main)
    return "Running" if has_begun else "Pending"


def _decide_ended_phase(policy: str, facts: PodFacts) -> str:
    """Return the phase of a pod whose containers have all ended: what is to start again is Running."""
    has_failed = any(map(_has_failed, facts.main))
    starts_again = policy == "Always" or (policy == "OnFailure" and has_failed)
    if starts_again and not facts.is_ending:
        return "Running"
    return "Failed" if has_failed else "Succeeded"


def _has_failed(record: ContainerRecord) -> bool:
    return isinstance(record.state, Terminated) and record.state.exit_code != 0


@dataclass(frozen=True)
class Condition:
    """One condition, without its times."""

    kind: str
    is_true: bool
    reason: str | None = None
    message: str | None = None


def decide_conditions(facts: PodFacts, phase: str) -> Iterator[Condition]:
    """Yield the conditions that a kubelet keeps."""
    is_over = phase in ("Succeeded", "Failed")
    yield Condition("PodReadyToStartContainers", bool(facts.pod_ip) and not is_over)
    yield Condition(
        "Initialized", facts.is_initialized, None if facts.is_initialized else "ContainersNotInitialized"
    )
    yield _decide_ready("Ready", facts, phase)
    yield _decide_ready("ContainersReady", facts, phase)
    yield Condition("PodScheduled", is_true=True)


def _decide_ready(kind: str, facts: PodFacts, phase: str) -> Condition:
    if phase in ("Succeeded", "Failed"):
        return Condition(kind, False, "PodCompleted" if phase == "Succeeded" else "PodFailed")
    if unready := [record.name for record in facts.main if not record.is_ready]:
        message = f"containers with unready status: [{' '.join(unready)}]"
        return Condition(kind, False, "ContainersNotReady", message)
    return Condition(kind, is_true=True)


def _render_condition(pod: Object, condition: Condition, now: datetime) -> Object:
    """Return the condition as the API has it; it keeps its time while it does not change."""
    before = _find_condition(pod, condition.kind)
    is_same = before.get("status") == str(condition.is_true) and before.get("lastTransitionTime")
    return {
        "type": condition.kind,
        "status": str(condition.is_true),
        "lastTransitionTime": before["lastTransitionTime"] if is_same else timestamp(now),
        "lastProbeTime": None,
        "reason": condition.reason,
        "message": condition.message,
        "observedGeneration": pod["metadata"].get("generation"),
    }


def _find_condition(pod: Object, kind: str) -> Object:
    found = pod.get("status", {}).get("conditions", ())
    return next((each for each in found if each["type"] == kind), {})
