"""The replica count that everything follows, and the part of status that says why. Pure."""

from dataclasses import dataclass
from typing import Any

from millrace_operator.reconcile.snapshot import Advice
from millrace_operator.resources.types import ScalingMode, Spec


@dataclass(frozen=True)
class Count:
    """The count decided now, and the `status.scaling` to write before anything follows it."""

    desired: int
    status: dict[str, Any]


def choose_count(spec: Spec, old: dict[str, Any], advice: Advice | None) -> Count:
    """Return the count for this mode. `old` is `status.scaling` as it was, empty at first.

    The text holds numbers that change all the time. While counts, mode, reason and binding stay the same,
    the old text stays too, so that such numbers alone write no status.
    """
    scaling = spec.scaling
    before = old.get("desiredReplicas", scaling.min_replicas)
    new: dict[str, Any] = {"mode": scaling.mode.value}
    if scaling.mode is ScalingMode.EXTERNAL:
        # The API server requires replicas in this mode.
        new |= {"desiredReplicas": spec.replicas or 0, "reason": "External"}
        new |= {"message": "the count is spec.replicas", "binding": "spec.replicas"}
        return Count(new["desiredReplicas"], new)
    recommended = advice.desired if advice else old.get("recommendedReplicas")
    follows = scaling.mode is ScalingMode.AUTOMATIC and advice is not None
    wanted = advice.desired if follows and advice else before
    desired = max(scaling.min_replicas, min(scaling.max_replicas, wanted))
    new["desiredReplicas"] = desired
    if recommended is not None:
        new["recommendedReplicas"] = recommended
    new |= _explain(old, advice, is_clamped=desired != wanted)
    same = all(
        new.get(key) == old.get(key)
        for key in ("desiredReplicas", "recommendedReplicas", "mode", "reason", "binding")
    )
    return Count(desired, old if same else new)


def _explain(old: dict[str, Any], advice: Advice | None, *, is_clamped: bool) -> dict[str, str]:
    if advice is not None:
        return {"reason": advice.reason, "message": advice.message, "binding": advice.binding}
    if old and not is_clamped and old.get("reason") != "External":
        return {key: old.get(key, "") for key in ("reason", "message", "binding")}
    return {"reason": "Bounds", "message": "within minReplicas and maxReplicas", "binding": "spec.scaling"}
