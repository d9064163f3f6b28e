"""Random schedules of edits, faults, lost nodes, restarts and requests: all end where no fault would have.

`make test-long` runs ten thousand. `schedule.py` has the steps.
"""

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace_operator.kube.kinds import CHILDREN, CONTROLLER_REVISION, DEPLOYMENT, JOB
from millrace_operator.observed.snapshot import Demand
from millrace_runtime import contract
from testing.world import KEY, World, ready_status
from tests.operator.controller.schedule import ASKED, COMMITS, SCHEDULES, STARTS, Schedule


def check_rest(world: World) -> None:
    """What holds of any service at rest, whatever its spec says of rollouts."""
    desired = find_desired(world)
    ready = [pod for pod in world.pods() if pod["status"] == ready_status()]
    assert len(ready) == len(world.pods())
    assert desired <= len(ready) <= desired + 1
    uid = world.service["metadata"]["uid"]
    for kind in CHILDREN:
        for child in world.objects(kind.kind):
            assert [owner["uid"] for owner in child["metadata"]["ownerReferences"]] == [uid]
            # Nobody looks for what an old revision left that runs nothing. Kubernetes takes it in the end.
            is_past = kind in (CONTROLLER_REVISION, JOB)
            is_idle = is_past or (kind is DEPLOYMENT and not child["spec"]["replicas"])
            assert is_idle or child["metadata"]["labels"][contract.LABEL_SERVICE] == KEY.name
    assert len(world.objects("ControllerRevision")) <= 12
    check_counts(world)
    may_be_none = world.service["spec"]["scaling"]["mode"] == "Automatic"
    assert world.condition("Ready")["status"] == ("True" if desired or may_be_none else "False")


def check_counts(world: World) -> None:
    """Each child is there once, and none is left over. What runs has one Deployment and its record."""
    labelled = [
        child
        for kind in CHILDREN
        for child in world.objects(kind.kind)
        if child["metadata"]["labels"].get(contract.LABEL_SERVICE) == KEY.name
    ]
    counts = Counter(child["kind"] for child in labelled)
    wanted = {"ServiceAccount": 1, "Service": 2, "PodDisruptionBudget": 1, "Job": 0}
    assert {kind: counts[kind] for kind in wanted} == wanted
    for kind in wanted.keys() - {"Job"}:
        assert len(world.objects(kind)) == wanted[kind], "one without its label is a duplicate"
    running = [one for one in world.objects("Deployment") if one["spec"]["replicas"]]
    revisions = Counter(one["metadata"]["labels"][contract.LABEL_REVISION] for one in running)
    assert set(revisions.values()) <= {1}
    assert revisions.keys() <= {
        one["metadata"]["labels"].get(contract.LABEL_REVISION) for one in world.objects("ControllerRevision")
    }
    uids = {one["metadata"]["uid"] for one in world.objects("Deployment")}
    assert all(owner["uid"] in uids for pod in world.pods() for owner in pod["metadata"]["ownerReferences"])


def find_desired(world: World) -> int:
    """The count that the spec asks for, or that the operator chose within the spec's bounds."""
    spec, scaling = world.service["spec"], world.status["scaling"]
    desired: int = scaling["desiredReplicas"]
    if spec["scaling"]["mode"] == "External":
        assert desired == spec["replicas"]
    else:
        least = spec["scaling"]["minReplicas"]
        assert least <= desired <= spec["scaling"]["maxReplicas"]
    return desired


async def check_waking(schedule: Schedule) -> None:
    """A service that may rest does so when nobody asks, and only then."""
    world = schedule.world
    world.demand = ASKED
    await schedule.mend()
    assert find_desired(world) >= 1
    check_rest(world)
    world.demand = Demand(0, world.now)
    await schedule.mend()
    if world.service["spec"]["scaling"]["minReplicas"] == 0:
        assert find_desired(world) == 0
    check_rest(world)


async def run_schedule(start: str, steps: list[tuple[str, Any]]) -> None:
    schedule = Schedule(start)
    world = schedule.world
    for step in steps:
        await schedule.take(step)
        assert sum(world.deployments().values()) <= 30
    await schedule.mend()
    check_rest(world)
    if schedule.is_automatic:
        await check_waking(schedule)
    await schedule.end()
    check_rest(world)
    running = {revision: count for revision, count in world.deployments().items() if count}
    assert running == {world.status["updateRevision"]: 3}
    assert world.status["currentRevision"] == world.status["updateRevision"]
    assert world.condition("Degraded")["status"] == "False"
    assert world.condition("Progressing")["status"] == "False"
    if schedule.is_fetched:
        assert world.status["model"]["resolvedRevision"] == COMMITS[-1]
    await world.settle()
    world.restart_operator()
    assert await world.reconcile_until_quiet() == 0


STARTING = st.sampled_from(list(STARTS))


@given(STARTING, SCHEDULES)
def test_any_schedule_ends_where_no_fault_would(start: str, steps: list[tuple[str, Any]]) -> None:
    asyncio.run(run_schedule(start, steps))


@pytest.mark.slow
@pytest.mark.long
@settings.get_profile("long")
@given(STARTING, SCHEDULES)
def test_any_of_many_schedules_ends_where_no_fault_would(start: str, steps: list[tuple[str, Any]]) -> None:
    asyncio.run(run_schedule(start, steps))
