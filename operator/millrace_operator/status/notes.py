"""Which transitions of a service are told by Events: from its status as it was, and as it is now. Pure.

What stays as it is yields nothing, so neither time nor another leader tells anything again.
"""

from collections.abc import Iterator
from typing import Any

from millrace_operator.api.conditions import Reason, find_condition
from millrace_operator.status.events import Note

Status = dict[str, Any]


def find_notes(old: Status, new: Status) -> Iterator[Note]:
    """Yield what to tell of the way from one status to the next."""
    yield from _tell_rollback(old, new)
    yield from _tell_trouble(old, new)
    yield from _tell_ready(old, new)
    yield from _tell_name(old, new)
    yield from _tell_canary(old.get("rollout", {}), new.get("rollout", {}))
    yield from _tell_wait(old, new)
    yield from _tell_rollout(old, new)
    yield from _tell_count(old, new)


def _tell_rollback(old: Status, new: Status) -> Iterator[Note]:
    """Tell it when it is decided: the failed pods' own trouble may last longer than that."""
    rejected, model = new.get("rejectedRevision"), find_condition(new, "ModelReady")
    if rejected and model and rejected != old.get("rejectedRevision"):
        yield Note(Reason.ROLLED_BACK, model["message"], is_warning=True)


def _tell_trouble(old: Status, new: Status) -> Iterator[Note]:
    before, after = (find_condition(status, "Degraded") or {} for status in (old, new))
    if after.get("status") != "True" or after["reason"] == Reason.ROLLED_BACK:
        return
    if (before.get("status"), before.get("reason")) != ("True", after["reason"]):
        yield Note(after["reason"], after["message"], is_warning=True)


def _tell_ready(old: Status, new: Status) -> Iterator[Note]:
    before, after = (find_condition(status, "Ready") or {} for status in (old, new))
    if after.get("status") == "True" != before.get("status"):
        yield Note(after["reason"], after["message"], is_warning=False)


def _tell_name(old: Status, new: Status) -> Iterator[Note]:
    """Tell the owner of a name that another namespace's service came to claim: clients fail from now on."""
    before, after = (find_condition(status, "AccessReady") or {} for status in (old, new))
    if after.get("status") == "False" != before.get("status"):
        yield Note(after["reason"], after["message"], is_warning=True)


def _tell_canary(old: Status, new: Status) -> Iterator[Note]:
    """Tell that a canary begins, and that it is promoted, from `status.rollout`."""
    revision, canary = new.get("revision"), new.get("canary")
    if canary is None:
        return
    before = old.get("canary") if old.get("revision") == revision else None
    if "promotedAt" not in canary and before is None:
        count = canary["replicas"]
        text = f"revision {revision} is tried on {count} {'replica' if count == 1 else 'replicas'}"
        yield Note("CanaryBegun", text, is_warning=False)
    if "promotedAt" in canary and "promotedAt" not in (before or {}):
        yield Note("Promoted", f"revision {revision} is promoted, and gets all replicas", is_warning=False)


def _tell_wait(old: Status, new: Status) -> Iterator[Note]:
    before, after = (find_condition(status, "Progressing") or {} for status in (old, new))
    if after.get("reason") == Reason.AWAITING_PROMOTION != before.get("reason"):
        yield Note(after["reason"], after["message"], is_warning=False)


def _tell_rollout(old: Status, new: Status) -> Iterator[Note]:
    """Tell that a revision has taken over. A first one only gets ready."""
    before, after = old.get("currentRevision"), new.get("currentRevision")
    if before and after and before != after:
        desired = new["scaling"]["desiredReplicas"]
        yield Note(
            "RolledOut", f"revision {after} serves with all of its {desired} replicas", is_warning=False
        )


def _tell_count(old: Status, new: Status) -> Iterator[Note]:
    before, after = (status.get("scaling", {}).get("desiredReplicas") for status in (old, new))
    if before is not None and before != after:
        text = f"from {before} to {after}: {new['scaling']['message']}"
        yield Note("Scaled", text, is_warning=False)
