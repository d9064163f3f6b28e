"""Which Event tells a note: one of its own, or one that is there already and is told once more.

The same words again raise the Event's count. Of one reason at most MOST_SIMILAR Events of a service are made
in SPAN_SECONDS, and what comes then is told by one that says so: a rollout that goes back and forth must not
bury everything else. As client-go's correlator does (tools/record/events_cache.go), with its figures.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from millrace_operator.api.conditions import render_time
from millrace_operator.kube.kinds import Obj

SPAN_SECONDS = 600.0
MOST_SIMILAR = 10
MOST_KNOWN = 4096
COMBINED = "(combined from similar events): "
LONGEST = 1024


@dataclass(frozen=True)
class Note:
    """What is to be told of a service."""

    reason: str
    message: str
    is_warning: bool


class Topic(NamedTuple):
    """What Events that are one have in common."""

    uid: str
    note: Note


@dataclass(frozen=True)
class Told:
    """An Event that was written."""

    name: str
    count: int
    last: float


class Journal:
    """Remembers what was told lately. Another leader begins anew: Events last for an hour."""

    def __init__(self) -> None:
        self._told: OrderedDict[Topic, Told] = OrderedDict()
        self._recent: OrderedDict[tuple[str, str], list[float]] = OrderedDict()

    def choose(self, service: Obj, note: Note, now: float) -> Topic:
        """Return the topic that a note of a service belongs to, at a time in seconds since 1970."""
        uid = service["metadata"]["uid"]
        topic = Topic(uid, note)
        if topic in self._told:
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

    def find(self, topic: Topic) -> Told | None:
        """Return the Event that tells the topic already."""
        return self._told.get(topic)

    def keep(self, topic: Topic, told: Told) -> None:
        """Remember that the Event was written."""
        self._told.pop(topic, None)
        self._told[topic] = told
        _shrink(self._told)


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


def render_again(note: Note, topic: Topic, told: Told) -> Obj:
    """Return the fields of an Event that change where it is told again."""
    return {
        "message": _render_message(note, topic),
        "lastTimestamp": render_time(told.last),
        "count": told.count,
    }


def _render_message(note: Note, topic: Topic) -> str:
    text = note.message if topic.note == note else COMBINED + note.message
    return text[:LONGEST]


def _shrink(known: OrderedDict[Any, Any]) -> None:
    """Forget the oldest beyond MOST_KNOWN."""
    while len(known) > MOST_KNOWN:
        known.popitem(last=False)
