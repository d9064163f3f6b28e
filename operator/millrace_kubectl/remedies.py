"""What to do about a service, the most pressing first, with the next command to type. Pure."""

import re
from collections.abc import Iterator

from millrace_kubectl.facts import Facts
from millrace_kubectl.kubectl import Obj
from millrace_kubectl.wording import (
    CHOOSE_BOUND,
    ENOUGH_FOR_LOAD,
    KEYS_UNREAD,
    MORE_IS_FUTILE,
    NAME_APART,
    NO_OPERATOR,
    NOT_REACHED,
    NOT_SIGNALLED,
    OBEY,
    REMEDIES,
    WAIT_FOR_FEEDBACK,
    WAIT_FOR_LOAD,
    WAIT_FOR_REPLICAS,
    name_objective,
)
from millrace_operator.api.conditions import LOWER_OR_ADD, NO_NODE_HAS, Reason

POD = re.compile(r"\bpod ([a-z0-9][a-z0-9.-]*-[a-z0-9.-]*[a-z0-9])")
CONTAINER = re.compile(r"\bcontainer (\S+) of pod ")
OBJECT = re.compile(r"\ba (\w+) named (\S+) exists ")
AUTOSCALER = re.compile(r"\bHorizontalPodAutoscaler (\S+) scales ")
LOG = "kubectl logs {pod}"
LAST_LOG = "kubectl logs {pod} --previous"
EVENTS = "kubectl describe pod {pod}"
COMMANDS = {
    "Conflict": "kubectl describe {kind} {object}",
    "Contested": "kubectl describe hpa {autoscaler}",
    "PodFailed": "kubectl get pods -o wide -l {selector}",
    "ImageUnavailable": EVENTS,
    "ContainerRefused": EVENTS,
    "FetchFailed": "kubectl logs {pod} -c fetch",
    "CacheUnusable": "kubectl get pvc",
    "ClaimMissing": "kubectl get pvc",
    "SecretMissing": "kubectl get secrets",
    "ModelInvalid": LAST_LOG,
    "DeviceUnusable": LAST_LOG,
    "SettingsInvalid": LAST_LOG,
    "Crashing": LAST_LOG,
    "Killed": EVENTS,
    "SidecarFailed": "kubectl logs {pod} -c {container} --previous",
    "ProbeFailed": EVENTS,
    "NotReady": EVENTS,
    "DeadlineExceeded": LOG,
    "Late": LOG,
    "Quota": "kubectl describe quota",
}
"""The commands that show more, by the name of a remedy."""


def find_command(facts: Facts, remedy: str, condition: Obj) -> str | None:
    """Return the command that shows more; None if there is none, or the message does not name the pod."""
    template = COMMANDS.get(remedy)
    try:
        return (
            None if template is None else name_place(facts, template.format(**_find_names(facts, condition)))
        )
    except KeyError:
        return None


def name_place(facts: Facts, command: str) -> str:
    """Return the command with the service's namespace, because the terminal's may be another."""
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


ABORTED = "Aborted"
"""A value of status.rejectedRevision.reason."""
OF_REVISIONS = frozenset(
    {
        Reason.CRASHING,
        Reason.OUT_OF_MEMORY,
        Reason.DOES_NOT_FIT,
        Reason.FETCH_FAILED,
        Reason.CACHE_UNUSABLE,
        Reason.CLAIM_MISSING,
        Reason.SECRET_MISSING,
        Reason.MODEL_INVALID,
        Reason.DEVICE_UNUSABLE,
        Reason.SETTINGS_INVALID,
        Reason.UNSCHEDULABLE,
        Reason.IMAGE_UNAVAILABLE,
        Reason.CONTAINER_REFUSED,
        Reason.PODS_REFUSED,
        Reason.DEADLINE_EXCEEDED,
    }
)
"""Reasons that a new revision may have caused. Then the previous revision is the way back."""
SHORTAGE = re.compile(r"Insufficient ([\w./-]+?)[.,]?(?:\s|$)")
"""In the scheduler's message, once for each resource: 0/12 nodes are available: 4 Insufficient cpu, 8 ..."""


ABSENT = re.compile(r"there is no (\w+) (\S+) in this namespace: create it, or (.+)$")
CORDONED = "were unschedulable"
"""In the scheduler's message: 2 node(s) were unschedulable."""
LOOKING = ("read ", "see ", "find ")
"""The beginnings of advice that the command beside it carries out."""


def find_shortage(facts: Facts) -> str | None:
    """Return the resource that nodes lack, such as 2 nvidia.com/gpu; None if they lack different ones."""
    found = set(SHORTAGE.findall(facts.shortage_words or ""))
    if len(found) != 1:
        return None
    [name] = found
    resources = facts.service.get("spec", {}).get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.get(name)
    return name if asked is None else f"{asked} {name}"


def find_remedies(facts: Facts) -> Iterator[str]:
    """Yield what to do, the most pressing first; nothing if all is well."""
    if not facts.status or facts.is_old or facts.is_pin_overdue:
        yield NO_OPERATOR
        return
    yield from _find_rollout_remedies(facts)
    if facts.shortage_words is not None:
        yield _describe_room(facts.shortage_words, find_shortage(facts))
    if _is_revisions_fault(facts) and _has_way_back(facts) and not _is_to_be_promoted(facts):
        yield f"or go back: {name_place(facts, f'kubectl millrace abort {facts.name}')}"
    why = facts.condition("AccessReady").get("reason")
    if why == Reason.NAME_SHADOWED:
        yield NAME_APART.format(full=facts.full_name)
    if why in KEYS_UNREAD:
        yield KEYS_UNREAD[why]
    if facts.is_blind:
        yield NOT_SIGNALLED
    if facts.objectives_in("Infeasible"):
        yield NOT_REACHED
    for one in facts.objectives:
        if facts.find_doubt(one):
            yield CHOOSE_BOUND.format(name=name_objective(one["metric"], one["percentile"]))
    yield from _find_count_remedies(facts)


def _describe_room(words: str, shortage: str | None) -> str:
    """Return how a pod gets a node, from the message of the operator or the scheduler."""
    if words.startswith(NO_NODE_HAS):
        return LOWER_OR_ADD
    ways = ["uncordon a node"] if CORDONED in words else []
    ways += [] if shortage is None else [f"free {shortage} on a node"]
    return f"{', '.join(ways)}, or add one" if ways else "add a node"


def _name_absent(message: str) -> str | None:
    """Return how to create the absent object that a message names."""
    found = ABSENT.search(message)
    return None if found is None else f"create {found[1]} {found[2]}, or {found[3]}"


def _find_rollout_remedies(facts: Facts) -> Iterator[str]:
    remedy, degraded = _name_remedy(facts), facts.condition("Degraded")
    if remedy in REMEDIES:
        command = find_command(facts, remedy, degraded)
        advice = _name_absent(degraded.get("message", "")) or REMEDIES[remedy]
        shows = "" if advice.startswith(LOOKING) else "; this shows more"
        yield advice if command is None else f"{advice}{shows}: {command}"
    elif remedy is not None and remedy not in set(Reason):
        yield OBEY
    if remedy in (Reason.ROLLED_BACK, ABORTED):
        yield f"or try it again: {name_place(facts, f'kubectl millrace promote {facts.name}')}"
    if _is_to_be_promoted(facts):
        yield name_place(facts, f"kubectl millrace promote {facts.name}")
        yield name_place(facts, f"kubectl millrace abort {facts.name}")


def _is_to_be_promoted(facts: Facts) -> bool:
    """Whether a canary waits for its owner's order, and the operator would obey one."""
    is_waiting = facts.condition("Progressing").get("reason") == Reason.AWAITING_PROMOTION
    return is_waiting and not facts.is_refused


def _name_remedy(facts: Facts) -> str | None:
    """Return the reason of Degraded, or a more specific name; None if the service is not degraded."""
    degraded, rejected = facts.condition("Degraded"), facts.status.get("rejectedRevision") or {}
    if degraded.get("status") != "True":
        return None
    reason, message = str(degraded.get("reason")), degraded.get("message", "")
    if reason == Reason.ROLLED_BACK and rejected.get("reason") == ABORTED:
        return ABORTED
    if reason in (Reason.CHILD_REFUSED, Reason.PODS_REFUSED) and "exceeded quota" in message:
        return "Quota"
    if reason == Reason.CRASHING and "SIGKILL" in message:
        return "Killed"
    return "Late" if reason == Reason.DEADLINE_EXCEEDED and not _has_way_back(facts) else reason


def _is_revisions_fault(facts: Facts) -> bool:
    """Whether a new revision may be the cause of Degraded."""
    if facts.is_refused:
        return False
    return facts.is_true("Degraded") and facts.condition("Degraded").get("reason") in OF_REVISIONS


def _has_way_back(facts: Facts) -> bool:
    """Whether a rollout replaces another revision, to which `abort` would go back."""
    return bool(facts.status.get("rollout") and facts.status.get("currentRevision"))


def _find_count_remedies(facts: Facts) -> Iterator[str]:
    is_missing, desired = bool(facts.objectives_in("Missed")), facts.desired
    if facts.condition("Pinned").get("reason") == "PinInvalid":
        yield f"its pin can't be read: {_unpin(facts)}"
    if facts.mode == "External":
        if facts.condition("Pinned"):
            yield f"its mode obeys no pin: {_unpin(facts)}"
        if facts.ready == 0 and desired == 0:
            yield name_place(facts, f"kubectl scale infsvc {facts.name} --replicas=1")
        return
    if facts.pin is not None and not (is_missing and _is_pin_enough(facts)):
        yield _unpin(facts)
        return
    if facts.mode == "DryRun" and facts.scaling.get("recommendedReplicas", desired) != desired:
        yield "write mode: Automatic to follow the autoscaler"
    is_short = facts.binding == "maxReplicas" and facts.wanted is not None and facts.wanted > facts.most
    is_full = is_missing and desired is not None and desired >= facts.most
    if is_short or (is_full and facts.wanted is None):
        yield "raise maxReplicas"
    elif is_full and not facts.is_futile:
        yield ENOUGH_FOR_LOAD
    if facts.reason == "Learning":
        yield WAIT_FOR_LOAD
    yield from _find_help(facts, is_missing=is_missing)


def _find_help(facts: Facts, *, is_missing: bool) -> Iterator[str]:
    """Yield how more replicas would help, or why none would."""
    desired, states = facts.desired, facts.evidence
    is_lacking = facts.ready is not None and desired is not None and facts.ready < desired
    if is_lacking and (is_missing or facts.is_blind or facts.ready == 0):
        is_starting = states.get("starting", 0) if states else facts.shortage_words is None
        yield from [WAIT_FOR_REPLICAS] if is_starting else []
    elif facts.is_futile:
        yield MORE_IS_FUTILE
    elif is_missing and desired is not None and desired < facts.most:
        yield from [WAIT_FOR_FEEDBACK] if facts.waits_for_feedback else []
        yield name_place(facts, f"kubectl millrace pin {facts.name} {desired + 1} --for 1h")


def _unpin(facts: Facts) -> str:
    return name_place(facts, f"kubectl millrace unpin {facts.name}")


def _is_pin_enough(facts: Facts) -> bool:
    """Whether a pinned count is at least the autoscaler's, as far as that is known."""
    recommended = facts.scaling.get("recommendedReplicas")
    return recommended is None or facts.desired is None or recommended <= facts.desired
