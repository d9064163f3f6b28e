"""Which transitions of a service become Events, and which Event records each of them. Pure.

A transition is a difference between the old status and the new one. So neither time nor a new leader repeats
an Event.

The same words again raise the Event's count. A service gets at most MOST_SIMILAR Events of one reason in
SPAN_SECONDS; further ones raise the count of a combined Event, so that a rollout which goes back and forth
hides no other Event. client-go's correlator does the same (tools/record/events_cache.go), with these
figures.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from millrace_operator.api.conditions import Reason, find_condition, render_time
from millrace_operator.kube.kinds import Obj

SPAN_SECONDS = 600.0
MOST_SIMILAR = 10
MOST_KNOWN = 4096
COMBINED = "(combined from similar events): "
LONGEST = 1024
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


class Topic(NamedTuple):
    """What repetitions of one Event have in common."""

    uid: str
    note: Note


@dataclass(frozen=True)
class WrittenEvent:
    """An existing Event."""

    name: str
    count: int
    last: float


class Journal:
    """Remembers recent Events. A new leader begins without them: Events last for an hour."""

    def __init__(self) -> None:
        self._written: OrderedDict[Topic, WrittenEvent] = OrderedDict()
        self._recent: OrderedDict[tuple[str, str], list[float]] = OrderedDict()

    def choose(self, service: Obj, note: Note, now: float) -> Topic:
        """Return the topic of a service's note, at a time in seconds since 1970."""
        uid = service["metadata"]["uid"]
        topic = Topic(uid, note)
        if topic in self._written:
            return topic
        key = (uid, note.reason)
        times = [at for at in self._recent.pop(key, []) if now - at < SPAN_SECONDS]
        if len(times) >= MOST_SIMILAR:
            topic = Topic(uid, replace(note, message=COMBINED))
        else:
            times.append(now)
        self._recent[key] = times
        _shrink(self._recent)
        return topic

    def find(self, topic: Topic) -> WrittenEvent | None:
        """Return the Event that has the topic already."""
        return self._written.get(topic)

    def keep(self, topic: Topic, written: WrittenEvent) -> None:
        """Remember an Event that was written."""
        self._written.pop(topic, None)
        self._written[topic] = written
        _shrink(self._written)


def render_event(service: Obj, note: Note, topic: Topic, now: float) -> Obj:
    """Return a new Event on the service."""
    metadata, stamp = service["metadata"], render_time(now)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": service["apiVersion"],
            "kind": service["kind"],
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "type": "Warning" if note.is_warning else "Normal",
        "reason": note.reason,
        "message": _render_message(note, topic),
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
        "source": {"component": "millrace-operator"},
    }


def render_again(note: Note, topic: Topic, written: WrittenEvent) -> Obj:
    """Return the fields of an Event that change with a repetition."""
    return {
        "message": _render_message(note, topic),
        "lastTimestamp": render_time(written.last),
        "count": written.count,
    }


def _render_message(note: Note, topic: Topic) -> str:
    text = note.message if topic.note == note else COMBINED + note.message
    return text[:LONGEST]


def _shrink(known: OrderedDict[Any, Any]) -> None:
    """Forget the oldest beyond MOST_KNOWN."""
    while len(known) > MOST_KNOWN:
        known.popitem(last=False)
