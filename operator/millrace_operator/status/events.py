"""Which transitions of a service become Events. Pure.

A transition is a difference between the old status and the new one. So neither time nor a new leader repeats
an Event. `event_aggregation.py` counts similar ones together.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from millrace_operator.api.conditions import Reason, find_condition

Status = dict[str, Any]


@dataclass(frozen=True)
class Note:
    """A transition of a service to record."""

    reason: str
    message: str
    is_warning: bool


def find_notes(old: Status, new: Status) -> Iterator[Note]:
    """Yield the transitions from one status to the next."""
    yield from _note_rollback(old, new)
    yield from _note_trouble(old, new)
    yield from _note_ready(old, new)
    yield from _note_access(old, new)
    yield from _note_removed_fields(old, new)
    yield from _note_canary(old.get("rollout", {}), new.get("rollout", {}))
    yield from _note_wait(old, new)
    yield from _note_rollout(old, new)
    yield from _note_count(old, new)


def _note_rollback(old: Status, new: Status) -> Iterator[Note]:
    """Yield a rollback when it is decided: the trouble of the failed pods may last longer."""
    rejected, model = new.get("rejectedRevision"), find_condition(new, "ModelReady")
    if rejected and model and rejected != old.get("rejectedRevision"):
        yield Note(Reason.ROLLED_BACK, model["message"], is_warning=True)


def _note_trouble(old: Status, new: Status) -> Iterator[Note]:
    before, after = (find_condition(status, "Degraded") or {} for status in (old, new))
    if after.get("status") != "True" or after["reason"] == Reason.ROLLED_BACK:
        return
    if (before.get("status"), before.get("reason")) != ("True", after["reason"]):
        yield Note(after["reason"], after["message"], is_warning=True)


def _note_ready(old: Status, new: Status) -> Iterator[Note]:
    before, after = (find_condition(status, "Ready") or {} for status in (old, new))
    if after.get("status") == "True" != before.get("status"):
        yield Note(after["reason"], after["message"], is_warning=False)


def _note_access(old: Status, new: Status) -> Iterator[Note]:
    """Yield that clients fail from now on: another namespace claims the name, or keys can't be read."""
    before, after = (find_condition(status, "AccessReady") or {} for status in (old, new))
    if after.get("status") == "False" != before.get("status"):
        yield Note(after["reason"], after["message"], is_warning=True)


def _note_removed_fields(old: Status, new: Status) -> Iterator[Note]:
    """Yield that the manifest has fields without an effect, once for each set of them."""
    before, after = (find_condition(status, "SpecCurrent") or {} for status in (old, new))
    if after and after["message"] != before.get("message"):
        yield Note(after["reason"], after["message"], is_warning=True)


def _note_canary(old: Status, new: Status) -> Iterator[Note]:
    """Yield the beginning of a canary, and its promotion, from `status.rollout`."""
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


def _note_wait(old: Status, new: Status) -> Iterator[Note]:
    before, after = (find_condition(status, "Progressing") or {} for status in (old, new))
    if after.get("reason") == Reason.AWAITING_PROMOTION != before.get("reason"):
        yield Note(after["reason"], after["message"], is_warning=False)


def _note_rollout(old: Status, new: Status) -> Iterator[Note]:
    """Yield that a revision has taken over. The first revision only becomes ready."""
    before, after = old.get("currentRevision"), new.get("currentRevision")
    if before and after and before != after:
        desired = new["scaling"]["desiredReplicas"]
        yield Note(
            "RolledOut", f"revision {after} serves with all of its {desired} replicas", is_warning=False
        )


def _note_count(old: Status, new: Status) -> Iterator[Note]:
    before, after = (status.get("scaling", {}).get("desiredReplicas") for status in (old, new))
    if before is not None and before != after:
        text = f"from {before} to {after}: {new['scaling']['message']}"
        yield Note("Scaled", text, is_warning=False)
