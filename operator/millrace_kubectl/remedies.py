"""What to do about a service, in the order of need. Pure."""

import re
from collections.abc import Iterator

from millrace_kubectl.facts import Facts
from millrace_kubectl.words import (
    CHOOSE_BOUND,
    MORE_IS_FUTILE,
    NO_OPERATOR,
    NOT_REACHED,
    NOT_SIGNALLED,
    REMEDIES,
    WAIT_FOR_FEEDBACK,
    WAIT_FOR_LOAD,
    WAIT_FOR_REPLICAS,
    WAIT_FOR_SCRAPE,
    name_objective,
)
from millrace_operator.resources.conditions import Reason

ABORTED = "Aborted"
"""Of status.rejectedRevision.reason."""
SHORTAGE = re.compile(r"Insufficient ([\w./-]+?)[.,]?(?:\s|$)")
"""In the scheduler's words, once for each resource: 0/12 nodes are available: 4 Insufficient cpu, 8 ..."""


def find_shortage(facts: Facts) -> str | None:
    """Return what no node has enough of, such as 2 nvidia.com/gpu; None where nodes lack different things."""
    words = (facts.evidence.get("replicas") or {}).get("unschedulableMessage", "")
    found = set(SHORTAGE.findall(words))
    if len(found) != 1:
        return None
    [name] = found
    resources = facts.service.get("spec", {}).get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.get(name)
    return name if asked is None else f"{asked} {name}"


def find_remedies(facts: Facts) -> Iterator[str]:
    """Return what to do, the most pressing first; nothing where all is well."""
    if not facts.status or facts.is_old or facts.is_pin_overdue:
        yield NO_OPERATOR
        return
    yield from _find_rollout_remedies(facts)
    if (facts.evidence.get("replicas") or {}).get("unschedulable"):
        shortage = find_shortage(facts)
        yield "add a node" if shortage is None else f"free {shortage} on a node, or add one"
    if facts.is_blind:
        yield WAIT_FOR_SCRAPE if facts.is_just_blind else NOT_SIGNALLED
    if facts.objectives_in("Infeasible"):
        yield NOT_REACHED
    for one in facts.objectives:
        if facts.find_doubt(one):
            yield CHOOSE_BOUND.format(name=name_objective(one["metric"], one["percentile"]))
    yield from _find_count_remedies(facts)


def _find_rollout_remedies(facts: Facts) -> Iterator[str]:
    degraded, rejected = facts.condition("Degraded"), facts.status.get("rejectedRevision") or {}
    reason = degraded.get("reason") if degraded.get("status") == "True" else None
    if reason == Reason.ROLLED_BACK and rejected.get("reason") == ABORTED:
        reason = ABORTED
    if reason in REMEDIES:
        yield REMEDIES[reason]
    if facts.condition("Progressing").get("reason") == Reason.AWAITING_PROMOTION:
        yield f"kubectl millrace promote {facts.name}"
        yield f"kubectl millrace abort {facts.name}"


def _find_count_remedies(facts: Facts) -> Iterator[str]:
    is_missing, desired = bool(facts.objectives_in("Missed")), facts.desired
    if facts.condition("Pinned").get("reason") == "PinInvalid":
        yield f"kubectl millrace unpin {facts.name}: its pin can't be read"
    if facts.mode == "External":
        if facts.ready == 0 and desired == 0:
            yield f"kubectl scale infsvc {facts.name} --replicas=1"
        return
    if facts.pin is not None and not (is_missing and _is_pin_enough(facts)):
        yield f"kubectl millrace unpin {facts.name}"
        return
    if facts.mode == "DryRun" and facts.scaling.get("recommendedReplicas", desired) != desired:
        yield "write mode: Automatic to follow the autoscaler"
    is_short = facts.binding == "maxReplicas" and facts.wanted is not None and facts.wanted > facts.most
    if is_short or (is_missing and desired is not None and desired >= facts.most):
        yield "raise maxReplicas"
    if facts.reason == "Learning":
        yield WAIT_FOR_LOAD
    yield from _find_help(facts, is_missing=is_missing)


def _find_help(facts: Facts, *, is_missing: bool) -> Iterator[str]:
    """Say which replicas would help, or why none would."""
    desired, states = facts.desired, facts.evidence.get("replicas") or {}
    is_lacking = facts.ready is not None and desired is not None and facts.ready < desired
    if is_lacking and (is_missing or facts.is_blind or facts.ready == 0):
        yield from [WAIT_FOR_REPLICAS] if not states or states.get("starting", 1) else []
    elif facts.is_futile:
        yield MORE_IS_FUTILE
    elif is_missing and desired is not None and desired < facts.most:
        yield from [WAIT_FOR_FEEDBACK] if facts.waits_for_feedback else []
        yield f"kubectl millrace pin {facts.name} {desired + 1} --for 1h"


def _is_pin_enough(facts: Facts) -> bool:
    """Whether a pinned count is what the autoscaler would have at least, as far as it is known."""
    recommended = facts.scaling.get("recommendedReplicas")
    return recommended is None or facts.desired is None or recommended <= facts.desired
