"""Events: one for each transition, told again where it comes again, and never a flood."""

import json

from millrace_operator.api.removed_fields import APPLIED
from millrace_operator.status.event_aggregation import (
    COMBINED,
    MOST_KNOWN,
    MOST_SIMILAR,
    SPAN_SECONDS,
    Journal,
    WrittenEvent,
)
from millrace_operator.status.events import Note
from testing.world import World, crash_status, ready_status

EXTERNAL = {"mode": "External", "minReplicas": 1, "maxReplicas": 8}
SERVICE = {"metadata": {"uid": "u"}}


def told(world: World) -> list[tuple[str, int]]:
    return [(event["reason"], event["count"]) for event in world.cluster.events]


async def served() -> World:
    world = World(scaling=EXTERNAL, replicas=1)
    await world.settle()
    return world


async def crash(world: World, *, is_broken: bool) -> None:
    status = crash_status("no kernel image") if is_broken else ready_status()
    for pod in world.pods():
        world.cluster.put({**pod, "status": status})
    world.now += 30
    await world.settle()


async def test_a_service_that_gets_ready_and_stays_so_is_told_once() -> None:
    world = await served()
    for _ in range(20):
        world.now += 60
        await world.settle()
    assert told(world) == [("Serving", 1)]


async def test_what_comes_again_is_counted() -> None:
    world = await served()
    for _ in range(4):
        await crash(world, is_broken=True)
        await crash(world, is_broken=False)
    assert told(world) == [("Serving", 5), ("Crashing", 4)]
    crashing = world.cluster.events[1]
    assert crashing["type"] == "Warning"
    assert crashing["firstTimestamp"] < crashing["lastTimestamp"]


async def test_an_event_that_has_expired_is_made_anew() -> None:
    world = await served()
    await crash(world, is_broken=True)
    world.cluster.events.clear()
    await crash(world, is_broken=False)
    await crash(world, is_broken=True)
    assert told(world) == [("Serving", 1), ("Crashing", 1)]


async def test_many_of_one_reason_are_combined() -> None:
    world = await served()
    for count in (3, 5, 7, 2, 4, 6, 8, 1, 4, 7, 3, 6, 2, 5):  # no step is there twice
        world.edit(replicas=count)
        await world.settle()
    scaled = [event for event in world.cluster.events if event["reason"] == "Scaled"]
    assert len(scaled) == MOST_SIMILAR + 1
    assert scaled[-1]["message"].startswith(f"{COMBINED}from 2 to 5")
    assert scaled[-1]["count"] == 4


def test_after_a_while_each_is_told_for_itself_again() -> None:
    notes = [Note("Scaled", f"from {number} to {number + 1}", is_warning=False) for number in range(30)]
    own = Journal()
    for note in notes[:MOST_SIMILAR]:
        assert own.choose(SERVICE, note, 0.0).note == note
    assert own.choose(SERVICE, notes[20], SPAN_SECONDS - 1).note.message == COMBINED
    assert own.choose(SERVICE, notes[21], SPAN_SECONDS).note == notes[21]


def test_what_is_remembered_is_bounded() -> None:
    own = Journal()
    for number in range(MOST_KNOWN + 10):
        note = Note("Scaled", str(number), is_warning=False)
        topic = own.choose({"metadata": {"uid": str(number)}}, note, 0.0)
        own.keep(topic, WrittenEvent(str(number), 1, 0.0))
    assert len(own._written) == len(own._recent) == MOST_KNOWN


async def test_fields_that_a_version_removed_are_told_once_for_each_set() -> None:
    world = await served()
    whole = world.status
    for manifest, words in (
        ({"spec": {"old": 1}}, "spec.old is not in this version's schema and has no effect; remove it"),
        ({"spec": {"old": 1, "older": 2}}, "spec.old and spec.older are not in this version's schema"),
    ):
        world.annotate(APPLIED, json.dumps(manifest))
        await world.settle()
        condition = world.condition("SpecCurrent")
        assert (condition["status"], condition["reason"]) == ("False", "FieldsRemoved")
        assert condition["message"].startswith(words)
        assert world.condition("UpToDate")["status"] == "True"
        world.restart_operator()
        await world.settle()
    assert told(world) == [("Serving", 1), ("FieldsRemoved", 1), ("FieldsRemoved", 1)]
    world.annotate(APPLIED, json.dumps({"spec": {}}))
    await world.settle()
    assert world.status == whole
