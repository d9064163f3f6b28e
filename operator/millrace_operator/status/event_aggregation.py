"""Which Event records a transition: similar ones raise one Event's count. Pure.

The same words again raise the Event's count. A service gets at most MOST_SIMILAR Events of one reason in
SPAN_SECONDS; further ones raise the count of a combined Event, so that a rollout which goes back and forth
hides no other Event. client-go's correlator does the same (tools/record/events_cache.go), with these
figures.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from millrace_operator.api.conditions import render_time
from millrace_operator.kube.kinds import Obj
from millrace_operator.status.events import Note

SPAN_SECONDS = 600.0
MOST_SIMILAR = 10
MOST_KNOWN = 4096
COMBINED = "(combined from similar events): "
LONGEST = 1024


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
