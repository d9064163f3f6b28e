"""What a pod may not ask of a process node: a field that it cannot make true is refused by its name. Pure.

Accepted though it has no effect here:

- security: seccomp, AppArmor and SELinux profiles, allowPrivilegeEscalation, dropped capabilities, fsGroup
  (a pod owns all its volumes)
- limits: of memory and of ephemeral storage
- volumes: emptyDir's medium and sizeLimit, and the mode of files (defaultMode, and mode of an item)
- images: imagePullPolicy and imagePullSecrets (an image is a Containerfile of this machine)
- names: DNS settings (names stand in /etc/hosts)
- what is changed in a pod that runs: ephemeralContainers, and resources (resizePolicy)
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
    "resourceClaims",
    "resources",
    "runtimeClassName",
    "setHostnameAsFQDN",
    "subdomain",
    "activeDeadlineSeconds",
)
_POD_SECURITY_FLAGS = ("supplementalGroups", "sysctls")
_CONTAINER_FLAGS = ("stdin", "tty", "volumeDevices")


def check_pod(pod: Object) -> None:
    """Raise PodRefusedError, which names every field that this node can't make true, where there is one."""
    problems = list(_problems(pod["spec"]))
    if problems:
        raise PodRefusedError("UnsupportedByProcessNode", f"this node cannot give: {', '.join(problems)}")


def _problems(spec: Object) -> Iterator[str]:
    yield from (flag for flag in _POD_FLAGS if spec.get(flag))
    if spec.get("hostUsers") is False:
        yield "hostUsers"
    security = spec.get("securityContext", {})
    yield from (f"securityContext.{flag}" for flag in _POD_SECURITY_FLAGS if security.get(flag))
    for group in ("initContainers", "containers"):
        for container in spec.get(group, ()):
            path = f"{group}[{container['name']}]"
            yield from (f"{path}.{problem}" for problem in _container_problems(container))
            if group == "initContainers" and container.get("restartPolicy"):
                yield f"{path}.restartPolicy"


def _container_problems(container: Object) -> Iterator[str]:
    yield from (flag for flag in _CONTAINER_FLAGS if container.get(flag))
    security, lifecycle = container.get("securityContext", {}), container.get("lifecycle", {})
    if security.get("privileged"):
        yield "securityContext.privileged"
    if security.get("capabilities", {}).get("add"):
        yield "securityContext.capabilities.add"
    if security.get("procMount", "Default") != "Default":
        yield "securityContext.procMount"
    yield from (f"lifecycle.{field}" for field in ("postStart", "stopSignal") if field in lifecycle)
    if "sleep" in lifecycle.get("preStop", {}):
        yield "lifecycle.preStop.sleep"
    if any(port.get("hostPort") for port in container.get("ports", ())):
        yield "ports.hostPort"
    for mount in container.get("volumeMounts", ()):
        yield from (f"{mount['mountPath']}: {problem}" for problem in _mount_problems(mount))
    for name in [kind.value for kind in ProbeKind if kind.value in container]:
        if not any(action in container[name] for action in ACTIONS):
            yield f"{name}.grpc" if "grpc" in container[name] else f"{name} without an action"


def _mount_problems(mount: Object) -> Iterator[str]:
    yield from (field for field in ("subPath", "subPathExpr") if field in mount)
    if mount.get("mountPropagation", "None") != "None":
        yield "mountPropagation"
    if mount.get("recursiveReadOnly") == "Enabled":
        yield "recursiveReadOnly"
