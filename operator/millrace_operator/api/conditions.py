"""The conditions of the resource: their reasons, and transition times that move only with the status."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

MESSAGE_MAX_LENGTH = 4096
UNREAD = "this version of the operator cannot read the spec"
"""Begins a condition's message if the operator cannot read the spec, and so does not follow the edit."""
NO_NODE_HAS = "no node has"
LOWER_OR_ADD = "lower spec.resources.limits, or add such a node"
"""Two parts of the message of Unschedulable if a pod asks for more GPUs than any node has."""


class Reason(StrEnum):
    """The reason of a condition, one word for programs."""

    SERVING = "Serving"
    RESOLVING = "Resolving"
    FETCHING = "Fetching"
    FETCH_FAILED = "FetchFailed"
    CACHE_UNUSABLE = "CacheUnusable"
    CLAIM_MISSING = "ClaimMissing"
    SECRET_MISSING = "SecretMissing"  # noqa: S105  a reason, no secret
    DOES_NOT_FIT = "DoesNotFit"
    LOADING = "Loading"
    CRASHING = "Crashing"
    OUT_OF_MEMORY = "OutOfMemory"
    PROBE_FAILED = "ProbeFailed"
    NOT_READY = "NotReady"
    SIDECAR_FAILED = "SidecarFailed"
    UNSCHEDULABLE = "Unschedulable"
    IMAGE_UNAVAILABLE = "ImageUnavailable"
    CONTAINER_REFUSED = "ContainerRefused"
    PODS_REFUSED = "PodsRefused"
    POD_FAILED = "PodFailed"
    CHILD_REFUSED = "ChildRefused"
    MODEL_INVALID = "ModelInvalid"
    DEVICE_UNUSABLE = "DeviceUnusable"
    SETTINGS_INVALID = "SettingsInvalid"
    CONFLICT = "Conflict"
    CONTESTED = "Contested"
    SCALED_TO_ZERO = "ScaledToZero"
    STARTING = "Starting"
    WAKING = "Waking"
    ROLLING_OUT = "RollingOut"
    CANARY = "Canary"
    AWAITING_PROMOTION = "AwaitingPromotion"
    SCALING = "Scaling"
    REPLACING = "Replacing"
    SETTLED = "Settled"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    ROLLED_BACK = "RolledBack"
    HEALTHY = "Healthy"
    LOADED = "Loaded"
    EXTERNAL = "External"
    DRY_RUN = "DryRun"
    DECIDING = "Deciding"
    SIGNALS_MISSING = "SignalsMissing"
    TOO_FEW_REQUESTS = "TooFewRequests"
    OBJECTIVES_KEPT = "ObjectivesKept"
    OBJECTIVES_MISSED = "ObjectivesMissed"
    PINNED = "Pinned"
    PIN_INVALID = "PinInvalid"
    PIN_LAPSED = "PinLapsed"
    FIELDS_REMOVED = "FieldsRemoved"
    NAME_HELD = "NameHeld"
    NAME_SHADOWED = "NameShadowed"
    KEYS_READABLE = "KeysReadable"
    SECRET_NAME_MISSING = "SecretNameMissing"  # noqa: S105  a reason, no secret
    SECRET_NAMESPACE_NOT_READABLE = "SecretNamespaceNotReadable"  # noqa: S105  a reason, no secret


@dataclass(frozen=True)
class Truth:
    """A condition as it is now, without its history."""

    type: str
    status: bool | None
    reason: Reason
    message: str


def render_time(now: float) -> str:
    """Return `now`, in seconds since 1970, as the API writes times."""
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str | None) -> float | None:
    """Return the seconds since 1970 of an API time; None without one, or for another form."""
    try:
        return None if not text else datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def merge_conditions(
    old: Sequence[dict[str, Any]], truths: Sequence[Truth], generation: int, now: float
) -> list[dict[str, Any]]:
    """Return conditions for `truths`, in their order; `lastTransitionTime` moves only with a status."""
    before = {condition.get("type"): condition for condition in old}
    return [_render_condition(before.get(truth.type), truth, generation, now) for truth in truths]


def _render_condition(
    old: dict[str, Any] | None, truth: Truth, generation: int, now: float
) -> dict[str, Any]:
    status = {True: "True", False: "False", None: "Unknown"}[truth.status]
    is_kept = old is not None and old.get("status") == status and old.get("lastTransitionTime")
    return {
        "type": truth.type,
        "status": status,
        "reason": str(truth.reason),
        "message": truth.message[:MESSAGE_MAX_LENGTH],
        "lastTransitionTime": old["lastTransitionTime"] if old and is_kept else render_time(now),
        "observedGeneration": generation,
    }


def find_condition(status: dict[str, Any], condition_type: str) -> dict[str, Any] | None:
    """Return the condition of that type in a raw status, or None."""
    return next((c for c in status.get("conditions", []) if c.get("type") == condition_type), None)
