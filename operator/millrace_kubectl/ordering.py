"""What `promote` and `abort` have in common: which revision they speak of, and what is known of it."""

from dataclasses import dataclass
from typing import Any

from millrace_kubectl.errors import PluginError
from millrace_kubectl.facts import find_unread
from millrace_kubectl.kubectl import Obj
from millrace_kubectl.words import NO_OPERATOR
from millrace_operator.api.conditions import find_condition


@dataclass(frozen=True)
class Revisions:
    """What a service's status says of its revisions."""

    asked: str
    """The one that the spec asks for."""
    current: str | None
    """The one that last served with all its replicas."""
    rollout: dict[str, Any]
    """`status.rollout`; empty when none is under way."""
    is_rejected: bool

    @property
    def is_promoted(self) -> bool:
        """Whether the canary of the rollout under way is over."""
        return "promotedAt" in (self.rollout.get("canary") or {})

    @property
    def canary(self) -> dict[str, Any] | None:
        """Return what is known of a canary that is not promoted; None without one."""
        canary: dict[str, Any] | None = self.rollout.get("canary")
        return None if self.is_promoted else canary


def read_revisions(service: Obj) -> Revisions:
    """Return them. Raises PluginError while the operator would obey no order."""
    metadata, status = service["metadata"], service.get("status") or {}
    asked, name = status.get("updateRevision"), metadata["name"]
    is_seen = status.get("observedGeneration") == metadata.get("generation")
    unread = find_unread(status) or (_find_fault(status) if asked is None else None)
    if is_seen and unread:
        raise PluginError(f"no order for {name} is obeyed now: {unread}. Correct that first")
    if asked is None or not is_seen:
        raise PluginError(
            f"the operator has not seen the last edit of {name} yet; try again in a moment, "
            f"and if it stays so, {NO_OPERATOR}"
        )
    rejected = status.get("rejectedRevision", {}).get("revision")
    return Revisions(asked, status.get("currentRevision"), status.get("rollout", {}), rejected == asked)


def _find_fault(status: dict[str, Any]) -> str | None:
    """Return why there is no revision."""
    degraded = find_condition(status, "Degraded") or {}
    return degraded.get("message") if degraded.get("status") == "True" else None
