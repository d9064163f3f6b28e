"""Other autoscalers of our Deployments: a HorizontalPodAutoscaler, also one of KEDA's. Pure.

It and the operator would undo each other's counts for ever, and nothing in the Deployment names it.
"""

from collections.abc import Iterable

from millrace_operator.api.conditions import Reason
from millrace_operator.kube.kinds import DEPLOYMENT, Obj, ObjectId, object_id
from millrace_operator.observed.snapshot import Rival
from millrace_operator.render.child import APPLIED
from millrace_operator.status.causes import Cause

LOOK_SECONDS = 60.0
"""Between two looks at known autoscalers: no watch of ours reports their deletion."""


def is_scaled_by_others(wanted: Iterable[Obj], owned: dict[ObjectId, Obj]) -> bool:
    """Whether somebody else has changed a Deployment's count: the last applied count is the wanted one."""
    for obj in wanted:
        observed = owned.get(object_id(obj))
        if obj["kind"] == DEPLOYMENT.kind and observed is not None:
            seals = (one["metadata"].get("annotations", {}).get(APPLIED) for one in (obj, observed))
            counts = (one.get("spec", {}).get("replicas") for one in (obj, observed))
            if len(set(seals)) == 1 and len(set(counts)) == 2:
                return True
    return False


def find_rivals(autoscalers: Iterable[Obj], children: Iterable[Obj]) -> tuple[Rival, ...]:
    """Return the autoscalers that scale a Deployment among the children, by name."""
    deployments = {obj["metadata"]["name"] for obj in children if obj["kind"] == DEPLOYMENT.kind}
    found = []
    for one in autoscalers:
        target = one.get("spec", {}).get("scaleTargetRef", {})
        if target.get("kind") == DEPLOYMENT.kind and target.get("name") in deployments:
            found.append(Rival(one["metadata"]["name"], target["name"]))
    return tuple(sorted(found))


def explain_rival(rival: Rival) -> Cause:
    """Return the cause, with what to do."""
    return Cause(
        Reason.CONTESTED,
        f"HorizontalPodAutoscaler {rival.autoscaler} scales Deployment {rival.deployment}, whose count "
        "follows the InferenceService: delete it, or let it scale the InferenceService in mode External",
    )
