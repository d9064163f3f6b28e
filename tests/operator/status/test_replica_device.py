"""`status.model.device` and `.serving`: whole sequences, and each with how often status is written."""

import pytest

from millrace_operator.status.model_status import choose_replica
from testing.world import World
from tests.operator.autoscaler.replicas import H100

EXTERNAL = {"mode": "External", "minReplicas": 1, "maxReplicas": 1}
SMALLER = H100.model_copy(update={"kv_cache_tokens": 400_000})
LONGER = H100.model_copy(update={"max_model_length": 16_384})
WRITTEN = {
    "device": "NVIDIA H100 80GB HBM3",
    "serving": "cuda, bfloat16, weights FromCheckpoint, tensor parallel 2; 500000 KV tokens, 256 sequences "
    "of up to 8192 tokens",
}


async def started(num_replicas: int = 2) -> World:
    world = World(scaling=EXTERNAL, replicas=num_replicas)
    await world.settle()
    return world


def names(world: World) -> list[str]:
    return [pod["metadata"]["name"] for pod in world.pods()]


def told(world: World) -> object:
    return {name: text for name, text in world.status["model"].items() if name in WRITTEN}


def with_other(was: str, text: str) -> dict[str, str]:
    return {**WRITTEN, "serving": WRITTEN["serving"].replace(was, text)}


async def test_nobody_knows_at_first_and_it_is_written_once() -> None:
    world = await started()
    assert world.status["model"] == {"servedName": "chat", "uri": "file:///models/stories"}
    first, second = names(world)
    world.replicas = {first: H100}
    assert await world.reconcile_until_quiet() == 1
    assert told(world) == WRITTEN
    world.replicas = {first: H100, second: H100}
    assert await world.reconcile_until_quiet() == 0


async def test_missing_signals_and_another_leader_change_nothing() -> None:
    world = await started()
    world.replicas = dict.fromkeys(names(world), H100)
    await world.settle()
    world.replicas = {}
    world.restart_operator()
    assert await world.reconcile_until_quiet() == 0
    world.edit(replicas=0)
    await world.settle()
    assert world.pods() == []
    assert told(world) == WRITTEN


async def test_replicas_that_differ_do_not_take_turns() -> None:
    """The one with the smallest cache is told, until no replica is like what was told."""
    world = await started(3)
    first, second, third = names(world)
    world.replicas = {first: H100, second: SMALLER}
    await world.settle()
    assert told(world) == with_other("500000", "400000")
    for seen in ({second: SMALLER}, {third: LONGER, second: SMALLER}, {first: SMALLER, third: H100}):
        world.replicas = seen
        assert await world.reconcile_until_quiet() == 0
    world.replicas = {first: H100, third: H100}
    assert await world.reconcile_until_quiet() == 1
    assert told(world) == WRITTEN


async def test_a_new_revision_is_told_once_it_is_the_current_one() -> None:
    world = await started()
    old = names(world)
    world.replicas = dict.fromkeys(old, H100)
    await world.settle()
    world.edit(engine={"maxModelLength": 16_384})
    await world.reconcile_until_quiet()
    world.run_controllers()
    new = [name for name in names(world) if name not in old]
    assert new
    world.replicas |= dict.fromkeys(new, LONGER)
    await world.reconcile_until_quiet()
    assert world.status["currentRevision"] != world.status["updateRevision"]
    assert told(world) == WRITTEN
    for _ in range(20):
        await world.reconcile_until_quiet()
        world.replicas |= {name: LONGER for name in names(world) if name not in old}
        if not world.run_controllers():
            break
    assert world.status["currentRevision"] == world.status["updateRevision"]
    assert told(world) == with_other("8192", "16384")


async def test_what_was_told_goes_with_its_revision_where_nothing_of_the_new_one_is_seen() -> None:
    world = await started()
    world.replicas = dict.fromkeys(names(world), H100)
    await world.settle()
    world.edit(engine={"maxModelLength": 16_384})
    await world.settle()
    assert world.status["currentRevision"] == world.status["updateRevision"]
    assert told(world) == {}


async def test_the_first_revision_is_told_before_all_its_replicas_are_ready() -> None:
    world = World(scaling=EXTERNAL, replicas=2)
    world.capacity = 1
    await world.settle()
    assert "currentRevision" not in world.status
    world.replicas = {names(world)[0]: H100}
    await world.settle()
    assert told(world) == WRITTEN
    world.replicas, world.capacity = {}, None
    await world.settle()
    assert world.status["currentRevision"]
    assert told(world) == WRITTEN


@pytest.mark.parametrize("old", [{}, {"device": "cpu"}, WRITTEN])
def test_what_is_there_stays_while_nobody_says_otherwise(old: dict[str, str]) -> None:
    assert choose_replica(old, []) == old
    assert choose_replica(old, [H100]) == WRITTEN
