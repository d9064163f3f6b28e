"""What a pod may not ask of a process node: refused with a reason, never silently left out. Pure.

Accepted though it has no effect here: seccomp and AppArmor profiles, dropped capabilities, fsGroup (a pod
owns all its volumes), DNS settings (names stand in /etc/hosts), memory limits, and terminationMessagePath
(the API server sets it in every container; no message is read from that file).
"""

from collections.abc import Iterator
from typing import Any

from e2e.cluster.nodes.errors import PodRefusedError
from e2e.cluster.nodes.prober import ACTIONS
from e2e.cluster.nodes.probes import ProbeKind

Object = dict[str, Any]
_POD_FLAGS = (
    "hostNetwork",
    "hostPID",
    "hostIPC",
    "hostAliases",
    "shareProcessNamespace",
    "ephemeralContainers",
    "readinessGates",
    "activeDeadlineSeconds",
)
_CONTAINER_FLAGS = ("stdin", "tty", "volumeDevices")


def check_pod(pod: Object) -> None:
    """Raise PodRefusedError, which names every field that this node can't make true, where there is one."""
    problems = list(_problems(pod["spec"]))
    if problems:
        raise PodRefusedError("UnsupportedByProcessNode", f"this node cannot give: {', '.join(problems)}")


def _problems(spec: Object) -> Iterator[str]:
    yield from (flag for flag in _POD_FLAGS if spec.get(flag))
    if spec.get("securityContext", {}).get("supplementalGroups"):
        yield "securityContext.supplementalGroups"
    for group in ("initContainers", "containers"):
        for container in spec.get(group, ()):
            path = f"{group}[{container['name']}]"
            yield from (f"{path}.{problem}" for problem in _container_problems(container))
            if group == "initContainers" and container.get("restartPolicy"):
                yield f"{path}.restartPolicy"


def _container_problems(container: Object) -> Iterator[str]:
    yield from (flag for flag in _CONTAINER_FLAGS if container.get(flag))
    context = container.get("securityContext", {})
    if context.get("privileged"):
        yield "securityContext.privileged"
    if context.get("capabilities", {}).get("add"):
        yield "securityContext.capabilities.add"
    if "postStart" in container.get("lifecycle", {}):
        yield "lifecycle.postStart"
    if "sleep" in container.get("lifecycle", {}).get("preStop", {}):
        yield "lifecycle.preStop.sleep"
    if any(port.get("hostPort") for port in container.get("ports", ())):
        yield "ports.hostPort"
    for mount in container.get("volumeMounts", ()):
        yield from (
            f"{mount['mountPath']}: {field}" for field in ("subPath", "subPathExpr") if field in mount
        )
    for name in [kind.value for kind in ProbeKind if kind.value in container]:
        if not any(action in container[name] for action in ACTIONS):
            yield f"{name}.grpc" if "grpc" in container[name] else f"{name} without an action"
