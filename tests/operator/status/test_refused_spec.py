"""A spec that the operator cannot read: what status says of a service that goes on without it."""

from typing import Any

import pytest

from testing.world import World, crash_status

EXTERNAL = {"mode": "External", "minReplicas": 1, "maxReplicas": 1}
UNREADABLE = {"rollout": {"progressDeadline": "soon"}}


async def refused(**edit: Any) -> World:
    world = World(scaling=EXTERNAL, replicas=3)
    await world.settle()
    world.now += 3600
    world.edit(**(edit or UNREADABLE))
    await world.settle()
    return world


def generations(world: World) -> dict[str, int]:
    """Of each condition the generation that it speaks of, which `kubectl wait` compares."""
    return {one["type"]: one["observedGeneration"] for one in world.status["conditions"]}


async def test_what_nobody_applied_is_waited_for_by_all_conditions_but_those_that_say_so() -> None:
    world = await refused()
    assert world.status["observedGeneration"] == 2
    told = {"Degraded": 2, "UpToDate": 2}
    others = ("Ready", "Progressing", "ModelReady", "AccessReady", "ScalingActive")
    assert generations(world) == dict.fromkeys(others, 1) | told
    assert world.condition("UpToDate")["status"] == "False"
    world.edit(rollout={})
    await world.settle()
    assert set(generations(world).values()) == {3}


async def test_it_says_in_plain_words_what_cannot_be_read() -> None:
    world = await refused(
        scaling={"mode": "Scheduled"}, rollout={"progressDeadline": "soon", "canary": {"replicas": 0}}
    )
    assert world.condition("Degraded")["message"] == (
        "this version of the operator cannot read the spec: scaling.mode should be 'Automatic', 'External' "
        "or 'DryRun'; rollout.progressDeadline: 'soon' is no duration; write for example 500ms, 2s, 10m or "
        "1h30m; rollout.canary.replicas: 0 is no number from 1 to 9999, and no share from 1% to 100%"
    )


async def test_a_place_in_a_list_and_what_is_missing_are_named() -> None:
    world = await refused(scaling={**EXTERNAL, "objectives": [{"percentile": 95, "target": "2s"}]})
    assert world.condition("Degraded")["message"].endswith(": scaling.objectives[0].metric is missing")


async def test_replicas_are_counted_all_the_same() -> None:
    world = await refused()
    first, *_ = world.pods()
    world.cluster.put({**first, "status": crash_status("CUDA error")})
    await world.settle()
    assert (world.status["readyReplicas"], world.status["replicas"]) == (2, 3)
    assert world.condition("Ready")["message"] == "2 of 3 desired replicas answer"
    for pod in world.pods():
        world.cluster.put({**pod, "status": crash_status("CUDA error")})
    await world.settle()
    assert world.status["readyReplicas"] == 0
    for name in ("Ready", "ModelReady"):
        found = world.condition(name)
        assert (found["status"], found["reason"], found["observedGeneration"]) == ("False", "Crashing", 1)
    assert world.condition("Degraded")["reason"] == "SettingsInvalid"


async def test_it_says_nothing_of_counts_where_none_was_decided() -> None:
    world = World(scaling={"mode": "Scheduled"})
    await world.settle()
    assert set(world.status) == {"observedGeneration", "conditions"}


async def test_at_zero_it_stays_so() -> None:
    world = World(scaling=EXTERNAL, replicas=0)
    await world.settle()
    before = world.condition("Ready")
    world.edit(**UNREADABLE)
    await world.settle()
    assert world.condition("Ready") == before


async def test_time_alone_writes_nothing() -> None:
    world = await refused()
    num_writes = len(world.cluster.writes)
    for _ in range(5):
        world.now += 600
        await world.settle()
    assert len(world.cluster.writes) == num_writes


@pytest.mark.parametrize(
    "edit",
    [
        {"rollout": {"schedulingTimeout": "soon"}},
        {"scaling": {"minReplicas": 0, "scaleToZeroAfter": "soon"}},
        {"scaling": {"minReplicas": 0, "activation": {"maxWait": "soon"}}},
        {"scaling": {"objectives": [{"metric": "QueueTime", "percentile": 95, "target": "soon"}]}},
    ],
)
async def test_what_is_no_duration_is_told_with_its_field_and_ends_no_plan(edit: dict[str, Any]) -> None:
    world = await refused(**edit)
    degraded = world.condition("Degraded")
    assert (degraded["reason"], degraded["observedGeneration"]) == ("SettingsInvalid", 2)
    assert "'soon' is no duration" in degraded["message"]
