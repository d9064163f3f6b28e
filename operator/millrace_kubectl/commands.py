"""The command to type next: for the pod or the object that a condition names. Pure."""

import re

from millrace_kubectl.facts import Facts
from millrace_kubectl.kubectl import Obj

POD = re.compile(r"\bpod ([a-z0-9][a-z0-9.-]*-[a-z0-9.-]*[a-z0-9])")
CONTAINER = re.compile(r"\bcontainer (\S+) of pod ")
OBJECT = re.compile(r"\ba (\w+) named (\S+) exists ")
AUTOSCALER = re.compile(r"\bHorizontalPodAutoscaler (\S+) scales ")
LOG = "kubectl logs {pod}"
LAST_LOG = "kubectl logs {pod} --previous"
EVENTS = "kubectl describe pod {pod}"
LOOKS = {
    "Conflict": "kubectl describe {kind} {object}",
    "Contested": "kubectl describe hpa {autoscaler}",
    "PodFailed": "kubectl get pods -o wide -l {selector}",
    "ImageUnavailable": EVENTS,
    "ContainerRefused": EVENTS,
    "FetchFailed": "kubectl logs {pod} -c fetch",
    "CacheUnusable": "kubectl get pvc",
    "ClaimMissing": "kubectl get pvc",
    "ModelInvalid": LAST_LOG,
    "Crashing": LAST_LOG,
    "Killed": EVENTS,
    "SidecarFailed": "kubectl logs {pod} -c {container} --previous",
    "ProbeFailed": EVENTS,
    "NotReady": EVENTS,
    "DeadlineExceeded": LOG,
    "Late": LOG,
    "Quota": "kubectl describe quota",
}
"""What shows more, by the name of a remedy."""


def find_look(facts: Facts, remedy: str, condition: Obj) -> str | None:
    """Return the command that shows more; None where there is none, or the message does not name the pod."""
    template = LOOKS.get(remedy)
    try:
        return (
            None if template is None else name_place(facts, template.format(**_find_names(facts, condition)))
        )
    except KeyError:
        return None


def name_place(facts: Facts, command: str) -> str:
    """Return the command with the service's namespace, which need not be that of the terminal."""
    return command + find_place(facts.service)


def find_place(service: Obj) -> str:
    """Return kubectl's flag for a service's namespace, after a space."""
    namespace = service["metadata"].get("namespace")
    return f" -n {namespace}" if namespace else ""


def _find_names(facts: Facts, condition: Obj) -> dict[str, str]:
    message = condition.get("message", "")
    found = {
        "pod": _find(POD, message),
        "container": _find(CONTAINER, message),
        "autoscaler": _find(AUTOSCALER, message),
        "kind": _find(OBJECT, message).lower(),
        "object": _find(OBJECT, message, 2),
        "selector": str(facts.status.get("selector", "")),
    }
    return {name: text for name, text in found.items() if text}


def _find(pattern: re.Pattern[str], text: str, group: int = 1) -> str:
    found = pattern.search(text)
    return found[group] if found else ""
