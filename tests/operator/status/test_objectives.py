"""ObjectivesMet: it tells of what is measured now, and of the objectives as they are written now."""

from typing import Any

from millrace_operator.observed.snapshot import Demand
from testing.world import BEGAN
from tests.operator.status.test_scaling_status import OBJECTIVES, SCALING, Seen

RESTING = {**SCALING, "minReplicas": 0, "objectives": OBJECTIVES}
FASTER = {**SCALING, "objectives": [{**OBJECTIVES[0], "target": "1ms"}]}


async def measured(scaling: dict[str, Any], *, are_met: bool = False) -> Seen:
    world = Seen(scaling=scaling)
    world.tell(
        are_objectives_met=are_met, objectives_message="as it is", state="Met" if are_met else "Missed"
    )
    await world.settle()
    return world


def told(world: Seen) -> tuple[str, str, str]:
    found = world.condition("ObjectivesMet")
    return found["status"], found["reason"], found["message"]


async def test_at_zero_nothing_is_measured() -> None:
    world = await measured(RESTING)
    world.advice, world.demand = None, Demand(0, world.now)
    world.now += 700
    await world.settle()
    at_zero = ("Unknown", "ScaledToZero", "there is no replica, so nothing is measured")
    assert (world.scaling["desiredReplicas"], told(world)) == (0, at_zero)
    num_writes = len(world.cluster.writes)
    world.now += 86400
    world.restart_operator()
    await world.settle()
    assert len(world.cluster.writes) == num_writes
    world.demand = Demand(1, None)
    await world.settle()
    assert told(world) == ("Unknown", "Starting", "no decision has been made yet")


async def test_in_mode_external_nobody_measures() -> None:
    world = await measured({**SCALING, "objectives": OBJECTIVES})
    world.edit(scaling={**SCALING, "mode": "External", "objectives": OBJECTIVES}, replicas=2)
    await world.settle()
    assert told(world) == ("Unknown", "External", "in mode External the operator measures nothing")


async def test_other_objectives_are_not_judged_by_what_was_measured_of_those_before() -> None:
    world = await measured({**SCALING, "objectives": OBJECTIVES}, are_met=True)
    world.edit(scaling=FASTER)
    await world.settle()
    unknown = ("Unknown", "Starting", "nothing has been measured yet for the objectives as they are now")
    assert told(world) == unknown
    world.advice = None
    world.restart_operator()
    await world.settle()
    assert told(world) == unknown
    world.tell(are_objectives_met=False, objectives_message="missed", state="Missed")
    assert world.advice is not None
    assert world.advice.evidence is not None
    world.advice.evidence["objectives"][0]["targetSeconds"] = "0.001"
    world.now = BEGAN + 61
    await world.settle()
    assert told(world) == ("False", "ObjectivesMissed", "missed")


async def test_a_new_leader_keeps_the_truth_of_the_same_objectives_through_another_edit() -> None:
    world = await measured({**SCALING, "objectives": OBJECTIVES}, are_met=True)
    world.advice = None
    world.restart_operator()
    world.edit(scaling={**SCALING, "maxReplicas": 80, "objectives": OBJECTIVES})
    await world.settle()
    assert told(world) == ("True", "ObjectivesKept", "as it is")


async def test_a_new_service_is_not_judged_yet_and_one_without_objectives_never() -> None:
    world = Seen(scaling={**SCALING, "objectives": OBJECTIVES})
    await world.settle()
    assert told(world) == ("Unknown", "Starting", "no decision has been made yet")
    world.edit(scaling=SCALING)
    await world.settle()
    assert all(one["type"] != "ObjectivesMet" for one in world.status["conditions"])
