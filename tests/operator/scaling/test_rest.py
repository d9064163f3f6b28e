"""Scale to zero and back, as whole sequences."""

from typing import Any

import pytest

from millrace_operator.api.annotations import PIN_ANNOTATION
from millrace_operator.observed.pods import read_pod
from millrace_operator.observed.snapshot import UNKNOWN_DEMAND, Advice, Demand, PodLoad
from testing.world import World, crash_status, unschedulable_status

SCALING = {"mode": "Automatic", "minReplicas": 0, "maxReplicas": 4, "scaleToZeroAfter": "10m"}
IDLE_SECONDS = 600.0
ASKED = Demand(1, None)


async def started(**scaling: Any) -> World:
    world = World(scaling={**SCALING, **scaling})
    await world.settle()
    return world


def counts(world: World) -> tuple[int, int]:
    """The count in status, and the pods there are."""
    return world.status["scaling"]["desiredReplicas"], len(world.pods())


def reason(world: World) -> str:
    return str(world.status["scaling"]["reason"])


async def rest(world: World) -> None:
    world.demand = Demand(0, world.now)
    world.now += IDLE_SECONDS
    await world.settle()
    assert counts(world) == (0, 0)


async def test_a_new_service_begins_with_a_replica_and_rests_when_nobody_asks() -> None:
    world = await started()
    assert counts(world) == (1, 1)
    world.demand = Demand(0, world.now - 5000.0)  # the gateways are older than the service
    await world.settle()
    assert counts(world) == (1, 1)
    wait = (await world.reconcile()).look_again
    assert wait is not None
    assert 1.0 <= wait <= IDLE_SECONDS
    world.now += wait + 5.0
    await world.settle()
    assert counts(world) == (0, 0)
    assert reason(world) == "Idle"
    assert world.status["scaling"]["message"] == "no request has come for 10m"
    ready = world.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("True", "ScaledToZero")
    assert world.condition("Progressing")["status"] == "False"
    assert world.condition("Degraded")["status"] == "False"


async def test_a_request_wakes_it_once_and_it_stays_while_requests_come() -> None:
    world = await started()
    await rest(world)
    world.cluster.writes.clear()
    world.demand = ASKED
    await world.settle()
    assert counts(world) == (1, 1)
    applies = [kind for verb, kind, _ in world.cluster.writes if kind == "Deployment"]
    assert applies == ["Deployment"]
    world.now += 5 * IDLE_SECONDS
    await world.settle()
    assert counts(world) == (1, 1)
    await rest(world)


async def test_the_time_without_requests_counts_from_when_a_replica_could_answer() -> None:
    world = await started()
    await rest(world)
    world.demand = ASKED
    await world.reconcile()
    asked_at = world.now
    world.now += 2 * IDLE_SECONDS  # it loads for long, and the client has left meanwhile
    world.demand = Demand(0, asked_at + 1.0)
    await world.settle()
    assert counts(world) == (1, 1)
    world.now += IDLE_SECONDS - 1.0
    await world.settle()
    assert counts(world) == (1, 1)
    world.now += 2.0
    await world.settle()
    assert counts(world) == (0, 0)


@pytest.mark.parametrize("is_new_leader", [False, True])
async def test_what_is_not_known_changes_nothing(*, is_new_leader: bool) -> None:
    world = await started()
    world.demand = UNKNOWN_DEMAND
    world.now += 100 * IDLE_SECONDS
    if is_new_leader:
        world.restart_operator()
    await world.settle()
    assert counts(world) == (1, 1)
    await rest(world)
    world.demand = UNKNOWN_DEMAND
    if is_new_leader:
        world.restart_operator()
    await world.settle()
    assert counts(world) == (0, 0)


async def test_at_rest_nothing_is_written() -> None:
    world = await started()
    await rest(world)
    world.cluster.writes.clear()
    for _ in range(100):
        world.now += 60.0
        await world.reconcile()
    assert world.cluster.writes == []


async def test_advice_neither_wakes_it_nor_keeps_it_awake() -> None:
    world = await started()
    world.advice = Advice(3, "ScalingUp", "load", "forecast", is_held=False)
    await world.settle()
    assert counts(world) == (3, 3)
    await rest(world)
    world.advice = Advice(1, "Steady", "load", "forecast", is_held=False, made_from=3)
    await world.settle()
    assert counts(world) == (0, 0)


async def test_a_service_that_may_not_rest_any_more_wakes() -> None:
    world = await started()
    await rest(world)
    world.edit(scaling={**SCALING, "minReplicas": 1})
    await world.settle()
    assert counts(world) == (1, 1)


@pytest.mark.parametrize("mode", ["DryRun", "External"])
async def test_in_the_other_modes_nobody_rests(mode: str) -> None:
    count = {"replicas": 1} if mode == "External" else {}
    world = World(scaling={**SCALING, "mode": mode}, **count)
    await world.settle()
    world.demand = Demand(0, world.now)
    world.now += 100 * IDLE_SECONDS
    await world.settle()
    assert counts(world) == (1, 1)


async def test_a_changed_service_wakes_with_its_new_revision_beside_the_one_that_served() -> None:
    world = await started()
    await rest(world)
    before = world.status["currentRevision"]
    world.edit(engine={"maxSequences": 4})
    await world.settle()
    assert counts(world) == (0, 0)
    world.demand = ASKED
    await world.reconcile_until_quiet()
    assert sorted(world.deployments().values()) == [1, 1]
    await world.settle()
    assert counts(world) == (1, 1)
    assert world.status["currentRevision"] != before


async def test_an_edit_at_zero_that_cannot_serve_harms_no_request() -> None:
    world = await started()
    await rest(world)
    before = world.status["currentRevision"]
    world.edit(engine={"maxSequences": 4})
    await world.settle()
    world.broken[world.status["updateRevision"]] = crash_status()
    world.demand = ASKED
    await world.settle()
    assert world.condition("Ready")["status"] == "True"
    assert world.condition("Degraded")["reason"] == "Crashing"
    assert [read_pod(pod).revision for pod in world.pods() if read_pod(pod).is_ready] == [before]


@pytest.mark.parametrize("rollout", [{}, {"canary": {"promotion": "Manual"}}])
async def test_nobody_rests_while_a_revision_takes_over(rollout: dict[str, Any]) -> None:
    world = World(scaling=SCALING, rollout=rollout)
    await world.settle()
    world.edit(engine={"maxSequences": 4})
    await world.reconcile()
    if not rollout:
        world.broken[world.status["updateRevision"]] = crash_status()
    await world.settle()
    serving = len(world.pods())
    world.demand = Demand(0, world.now)
    world.now += IDLE_SECONDS
    await world.settle()
    assert len(world.pods()) == serving
    assert world.status["scaling"]["desiredReplicas"] == 1


async def test_a_service_that_does_not_start_again_rests_when_nobody_asks_any_more() -> None:
    world = await started()
    await rest(world)
    world.capacity = 0
    world.demand = ASKED
    await world.settle()
    assert counts(world) == (1, 1)
    assert world.pods()[0]["status"] == unschedulable_status()
    world.demand = Demand(0, world.now)
    world.now += IDLE_SECONDS + 1790.0
    await world.settle()
    assert counts(world) == (1, 1)
    world.now += 20.0
    await world.settle()
    assert counts(world) == (0, 0)


async def test_a_request_that_was_refused_at_zero_wakes_it_once() -> None:
    world = await started()
    await rest(world)
    world.now += 30.0
    world.demand = Demand(0, None, last_end=world.now)
    await world.settle()
    assert counts(world) == (1, 1)
    await rest(world)
    await world.settle()
    assert counts(world) == (0, 0)


async def test_the_last_replica_goes_when_gateways_have_seen_that_it_does() -> None:
    world = await started()
    (uid,) = {pod["metadata"]["uid"] for pod in world.pods()}
    world.loads = {uid: PodLoad(0, has_left=False)}
    world.demand = Demand(0, world.now)
    world.now += IDLE_SECONDS
    await world.settle()
    assert counts(world) == (0, 1)
    assert read_pod(world.pods()[0]).is_marked
    world.demand = ASKED  # a request comes after all: the gateway holds it
    await world.settle()
    assert counts(world) == (1, 1)
    (pod,) = map(read_pod, world.pods())
    assert (pod.uid, pod.is_marked) == (uid, False)
    world.loads = {}
    await rest(world)


async def test_scaling_is_told_truly_after_a_wake() -> None:
    world = await started()
    await rest(world)
    assert world.condition("ScalingActive")["reason"] == "ScaledToZero"
    world.demand = ASKED
    await world.settle()
    assert world.condition("ScalingActive")["reason"] == "Starting"


@pytest.mark.parametrize(
    ("fields", "demand", "pin"),
    [
        ({}, Demand(0, 0.0), True),
        ({"scaleToZeroAfter": "1ms"}, UNKNOWN_DEMAND, False),
        ({"scaleToZeroAfter": "1ms"}, ASKED, False),
    ],
)
async def test_nobody_looks_all_the_time(fields: dict[str, Any], demand: Demand, *, pin: bool) -> None:
    world = await started(**fields)
    if pin:
        metadata = {
            **world.service["metadata"],
            "annotations": {PIN_ANNOTATION: "1 until 2099-01-01T00:00:00Z"},
        }
        world.cluster.put({**world.service, "metadata": metadata})
    world.demand = demand
    world.now += 5000.0
    await world.settle()
    look = (await world.reconcile()).look_again
    assert look is None or look >= 2.0


async def test_a_service_that_somebody_scaled_to_zero_begins_with_a_replica_when_the_mode_changes() -> None:
    world = World(scaling={**SCALING, "mode": "External"}, replicas=0)
    await world.settle()
    assert counts(world) == (0, 0)
    world.edit(scaling=SCALING, replicas=None)
    await world.settle()
    assert counts(world) == (1, 1)


async def test_an_edit_to_an_unknown_version_at_zero_wakes_what_served() -> None:
    world = await started()
    await rest(world)
    before = world.status["currentRevision"]
    world.edit(engine={"version": "9.9"})
    await world.settle()
    assert world.condition("Degraded")["reason"] == "SettingsInvalid"
    assert "9.9" in world.condition("Degraded")["message"]
    world.demand = ASKED
    await world.settle()
    assert counts(world) == (1, 1)
    assert list(world.deployments()) == [before]
    assert world.condition("Ready")["status"] == "True"
    assert world.condition("UpToDate")["status"] == "False"
    world.edit(engine={})
    await world.settle()
    assert world.condition("Degraded")["status"] == "False"


@pytest.mark.parametrize("controllers", [False, True])
async def test_what_starts_beside_a_new_revision_only_becomes_less(*, controllers: bool) -> None:
    world = World(scaling={"mode": "External"}, replicas=2)
    await world.settle()
    world.edit(replicas=0)
    await world.settle()
    former = world.status["currentRevision"]
    world.edit(replicas=2, engine={"maxSequences": 4})
    world.quota, world.capacity = 3, 0
    seen = []
    for _ in range(12):
        await world.reconcile()
        if controllers:
            world.run_controllers()
        world.now += 30.0
        seen.append(world.deployments().get(former, 0))
    assert seen[0] == 2
    assert seen == sorted(seen, reverse=True)


async def test_a_single_replica_that_makes_room_is_answered_for_by_the_former_revision_first() -> None:
    world = await started()
    world.edit(rollout={"strategy": "Replace"})
    await rest(world)
    former = world.status["currentRevision"]
    world.edit(engine={"maxSequences": 4})
    world.demand = ASKED
    await world.reconcile()
    await world.reconcile()
    assert world.deployments()[former] == 1
