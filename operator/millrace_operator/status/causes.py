"""Why a pod does not serve, from its status alone. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from millrace_fit.accelerators import NO_GPU
from millrace_fit.shard import CANNOT_SHARE
from millrace_operator.api.conditions import Reason, parse_time
from millrace_operator.observed.fetch_run import read_fetch
from millrace_operator.observed.pod_status import (
    find_condition,
    find_container,
    find_fetcher,
    find_last_end,
    find_state,
    list_others,
    read_last_line,
)
from millrace_runtime import contract

UNREADY_REASONS = frozenset({Reason.PROBE_FAILED, Reason.NOT_READY})
"""Causes of pods that were Ready, and whose container still runs."""
_NO_ROOM_REASONS = frozenset({"Unschedulable", "SchedulingGated"})
_IMAGE_REASONS = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
_REFUSED_REASONS = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_ABSENT_CLAIM = re.compile(r'persistentvolumeclaim "([^"]+)" not found')
"""The scheduler's words. No new node has such a claim."""
_ABSENT_SECRET = re.compile(r'^secret "([^"]+)" not found$')
"""The kubelet's words about a Secret whose keys are variables of the container."""
_NO_GPU = re.compile(re.escape(NO_GPU) + r"(?: \(.*\))?")
_KILLED = 137
"""128 + SIGKILL."""


@dataclass(frozen=True)
class Cause:
    """Why a pod does not serve."""

    reason: Reason
    message: str


def explain_refusal(kind: str, name: str, message: str) -> Cause:
    """Return the cause that the API server refuses a child, in the server's own words."""
    return Cause(Reason.CHILD_REFUSED, f"the API server refuses {kind} {name}: {message}")


def diagnose(name: str, status: dict[str, Any], *, is_asking: bool = False) -> Cause | None:
    """Return the first cause why a pod is not Ready; None while it only starts.

    A pod that only asks a model's source (`is_asking`) keeps its cause during another attempt.
    """
    return next(_find_causes(name, status, is_asking=is_asking), None)


def _find_causes(name: str, status: dict[str, Any], *, is_asking: bool) -> Iterator[Cause]:
    container = find_container(status)
    yield from _find_failure(status)
    yield from _find_refusal(name, status)
    limit = "spec.resources.limits.memory" if container else "the operator's Jobs may use"
    if is_asking or not read_fetch(status).is_running:
        yield from _find_fetch_failure(name, find_fetcher(status), limit)
    yield from _find_obstacle(f"pod {name}", container)
    yield from _find_failed_probe(name, status, container)
    ended = find_last_end(container)
    if ended and not _was_ready(status, container):
        yield _explain_end(name, ended, int(container.get("restartCount", 0)))
    for other in list_others(status):
        who = f"container {other.get('name')} of pod {name}"
        yield from _find_obstacle(who, other)
        yield from _find_foreign_end(who, other)
    if _was_ready(status, container):
        yield _explain_unready(name, status)


def _find_failure(status: dict[str, Any]) -> Iterator[Cause]:
    if status.get("phase") == "Failed":
        # Without the pod's name: another pod may fail each second, and the text has to stay.
        words = ": ".join(text for text in (status.get("reason"), status.get("message")) if text)
        yield Cause(Reason.POD_FAILED, f"a pod failed: {words or 'its containers ended'}")


def _find_refusal(name: str, status: dict[str, Any]) -> Iterator[Cause]:
    scheduled = find_condition(status, "PodScheduled")
    claim = find_absent_claim(status)
    if claim is not None:
        words = f"there is no PersistentVolumeClaim {claim} in this namespace"
        advice = "create it, or correct the claim's name in spec.model.uri"
        yield Cause(Reason.CLAIM_MISSING, f"pod {name} cannot start: {words}: {advice}")
    if scheduled.get("status") == "False" and scheduled.get("reason") in _NO_ROOM_REASONS:
        yield Cause(Reason.UNSCHEDULABLE, f"pod {name} cannot be scheduled: {scheduled.get('message', '')}")


def find_absent_claim(status: dict[str, Any]) -> str | None:
    """Return the absent claim that a pod names; None if its claims exist, as far as is known."""
    scheduled = find_condition(status, "PodScheduled")
    found = _ABSENT_CLAIM.search(scheduled.get("message", "")) if scheduled.get("status") == "False" else None
    return found[1] if found else None


def _find_fetch_failure(name: str, container: dict[str, Any], limit: str) -> Iterator[Cause]:
    """Yield what keeps the model from being fetched. The kubelet repeats the attempts.

    `limit` names the container's limit of memory.
    """
    who = f"container {contract.CONTAINER_FETCH} of pod {name}"
    yield from _find_obstacle(who, container, "spec.model.credentials.secretName")
    ended = find_last_end(container)
    if ended is None or ended.get("exitCode") == 0:
        return
    said = read_last_line(ended) or f"exit status {ended.get('exitCode')}"
    if ended.get("reason") == "OOMKilled":
        said = f"it was killed for using more memory than {limit} (OOMKilled)"
    yield Cause(Reason.FETCH_FAILED, f"pod {name} cannot fetch the model: {said}")


def _find_obstacle(
    who: str, container: dict[str, Any], field: str = "its name in spec.pod"
) -> Iterator[Cause]:
    """Yield what keeps a container from being created. `field` is where the spec names its Secrets."""
    waiting = find_state(container, "waiting") or {}
    reason, text = waiting.get("reason", ""), waiting.get("message", "")
    if reason in _IMAGE_REASONS:
        yield Cause(Reason.IMAGE_UNAVAILABLE, f"{who}: {reason}: {text}")
    if absent := _ABSENT_SECRET.match(text):
        words = f"there is no Secret {absent[1]} in this namespace: create it, or correct {field}"
        yield Cause(Reason.SECRET_MISSING, f"{who} cannot start: {words}")
    if reason in _REFUSED_REASONS:
        yield Cause(Reason.CONTAINER_REFUSED, f"{who}: {reason}: {text}")


def _was_ready(status: dict[str, Any], container: dict[str, Any]) -> bool:
    """Whether the pod has been Ready since its container started, and no longer is.

    A pod is not Ready from its creation, or from a crash: both are before the container's start. For some
    seconds after the start the kubelet has not probed the container yet, and nothing fails.
    """
    running, ready = find_state(container, "running"), find_condition(status, "Ready")
    if running is None or not container.get("started") or ready.get("status") != "False":
        return False
    began, since = parse_time(running.get("startedAt")), parse_time(ready.get("lastTransitionTime"))
    return began is None or since is None or since > began


def _find_failed_probe(name: str, status: dict[str, Any], container: dict[str, Any]) -> Iterator[Cause]:
    if _was_ready(status, container) and not container.get("ready"):
        words = f"pod {name} runs, and its readiness probe fails"
        yield Cause(Reason.PROBE_FAILED, words + _quote_ready(status))


def _explain_unready(name: str, status: dict[str, Any]) -> Cause:
    """Return the cause of a pod that is not Ready although its probe succeeds, as on a lost node."""
    words = _quote_ready(status) or "; if that lasts, its node does not report"
    return Cause(
        Reason.NOT_READY, f"pod {name} runs, and its readiness probe succeeds, but it is not Ready{words}"
    )


def _quote_ready(status: dict[str, Any]) -> str:
    text = find_condition(status, "Ready").get("message")
    return f": {text}" if text else ""


def _find_foreign_end(who: str, container: dict[str, Any]) -> Iterator[Cause]:
    """Yield that another container failed. A container that is ready again may have waited for others."""
    is_backing_off = (find_state(container, "waiting") or {}).get("reason") == "CrashLoopBackOff"
    is_working = container.get("ready") and not is_backing_off
    ended = None if is_working else find_last_end(container)
    if ended is None or (ended.get("exitCode") == 0 and not is_backing_off):
        return
    restarts = int(container.get("restartCount", 0))
    if ended.get("reason") == "OOMKilled":
        words = f"{who} was killed for using more memory than its limit"
        yield Cause(Reason.SIDECAR_FAILED, f"{words} ({_describe_memory_kill(ended, restarts)})")
        return
    text = _describe_end(ended, restarts)
    yield Cause(Reason.SIDECAR_FAILED, f"{who} ended{text}")


def _explain_end(name: str, ended: dict[str, Any], restarts: int) -> Cause:
    code, last_line = ended.get("exitCode"), read_last_line(ended)
    said = f": {last_line}" if last_line else f" with exit status {code}"
    if code == contract.EXIT_BAD_MODEL:
        return _explain_bad_model(name, last_line, said)
    if code == contract.EXIT_BAD_USAGE:
        return Cause(Reason.SETTINGS_INVALID, f"pod {name} refuses its settings{said}")
    if ended.get("reason") == "OOMKilled":
        return Cause(
            Reason.OUT_OF_MEMORY,
            f"pod {name} was killed for using more memory than spec.resources.limits.memory "
            f"({_describe_memory_kill(ended, restarts)}); write a larger one{_quote_last_line(last_line)}",
        )
    if code == _KILLED and ended.get("reason") == "Error":  # a lost container has this code, too
        return Cause(Reason.CRASHING, f"pod {name} {_describe_kill(last_line, restarts)}")
    return Cause(Reason.CRASHING, f"pod {name} ended{_describe_end(ended, restarts)}")


def _explain_bad_model(name: str, last_line: str, said: str) -> Cause:
    """Return why a model is not loaded: by a fault of the settings, of the device, or of the model."""
    if CANNOT_SHARE in last_line:
        where = "nvidia.com/gpu under spec.resources.limits, or spec.parallelism.tensor"
        return Cause(Reason.SETTINGS_INVALID, f"pod {name} refuses its settings{said} ({where})")
    if found := _NO_GPU.search(last_line):
        advice = "check the driver of its node, or remove nvidia.com/gpu from spec.resources.limits"
        return Cause(Reason.DEVICE_UNUSABLE, f"pod {name}: {found[0]}: {advice} to serve on CPUs")
    return Cause(Reason.MODEL_INVALID, f"pod {name} cannot load the model{said}")


def _describe_memory_kill(ended: dict[str, Any], restarts: int) -> str:
    return f"OOMKilled, exit status {ended.get('exitCode')}, {_describe_restarts(restarts)}"


def _describe_kill(last_line: str, restarts: int) -> str:
    """Return a kill in words. The pod's status does not name the sender of the signal; its Events may."""
    exit_words = f"SIGKILL, exit status {_KILLED}, {_describe_restarts(restarts)}"
    return (
        f"was killed ({exit_words}), and nothing says that it was for its memory limit: probably its startup "
        "or liveness probe failed and its grace ended, or its node ran out of memory. The pod's Events say "
        f"which{_quote_last_line(last_line)}"
    )


def _describe_end(ended: dict[str, Any], restarts: int) -> str:
    code, last_line = ended.get("exitCode"), read_last_line(ended)
    said = f": {last_line}" if last_line else f" with exit status {code}"
    return f"{said} (exit status {code}, {_describe_restarts(restarts)})"


def _quote_last_line(line: str) -> str:
    return f". Its last line: {line}" if line else ""


def _describe_restarts(count: int) -> str:
    """Return the number of restarts roughly. An exact count would write the status at every restart."""
    return "first time" if count < 2 else "again and again"
