"""A model in a claim that was refused: what was told stays, and nothing holds the claim."""

import json

import pytest

from millrace_fit.facts import find_facts
from millrace_operator.api.conditions import render_time
from millrace_operator.kube.kinds import CONTROLLER_REVISION, JOB, POD
from millrace_operator.model.pending_revision import DISTURBED_SECONDS
from millrace_operator.render.settings import RenderSettings
from millrace_runtime import contract
from testing.checkpoints.models import MEDIUM, stored_of
from testing.world import KEY, World, make_service, resolver_status
from tests.operator.model.test_fit import FACTS
from tests.operator.model.test_look import (
    LARGE,
    SMALL,
    check_served_unseen,
    clean_up,
    die_after_each_write,
    get_pod,
    get_record,
    make_world,
    told,
)

TOLD = json.loads(FACTS.to_json())
FITTING = json.loads(find_facts(MEDIUM, stored_of(MEDIUM)).to_json())
MESH = {"name": "mesh", "ready": True, "state": {"running": {}}}


async def make_refused() -> World:
    world = make_world(resources=SMALL)
    await world.settle()
    check_refused(world)
    return world


def check_refused(world: World) -> None:
    """No pod is made of the model, and the revision's record says why."""
    assert told(world) == ("False", "DoesNotFit")
    assert not world.objects("Deployment")
    assert not world.objects("Job")
    assert not world.objects("Pod"), "one would hold the claim, also when it has ended"
    (record,) = world.objects("ControllerRevision")
    assert record["metadata"]["labels"][contract.LABEL_PENDING] == "true"
    assert record["data"]["model"]["facts"] == TOLD


def list_writes_of(world: World, kind: str, since: int = 0) -> list[str]:
    return [verb for verb, written, _ in world.cluster.writes[since:] if written == kind]


async def test_what_was_told_is_kept_before_the_pod_that_told_it_goes() -> None:
    world = await make_refused()
    writes = [(verb, kind) for verb, kind, _ in world.cluster.writes if kind in ("Job", "ControllerRevision")]
    assert writes == [("create", "Job"), ("create", "ControllerRevision"), ("delete", "Job")]


@pytest.mark.parametrize("is_collected", [True, False])
async def test_a_service_that_is_made_anew_is_looked_at_anew(*, is_collected: bool) -> None:
    """Nobody looked between the two, as with kubectl replace --force."""
    world = await make_refused()
    world.now += 86400
    before = len(world.cluster.writes)
    world.cluster.put({**make_service(), "spec": world.service["spec"]})
    while is_collected and world.run_controllers():
        pass
    await world.settle()
    assert ("create", "Deployment") not in {write[:2] for write in world.cluster.writes[before:]}
    check_refused(world)


async def test_the_look_of_the_service_before_is_no_obstacle_to_one_that_is_made_anew() -> None:
    """Its Job has the name until garbage collection takes it."""
    world = make_world(None, resources=SMALL)
    await world.settle()
    world.model_facts = TOLD
    world.cluster.put({**make_service(), "spec": world.service["spec"]})
    await world.settle()
    check_refused(world)


async def test_a_job_of_the_service_before_that_never_goes_is_not_waited_for_for_long() -> None:
    world = make_world(None, resources=SMALL)
    await world.settle()
    world._collect = lambda: False  # type: ignore[method-assign]
    world.cluster.put({**make_service(), "spec": world.service["spec"]})
    outcome = await world.reconcile()
    assert outcome.look_again is not None
    assert not world.objects("ControllerRevision")
    world.now += DISTURBED_SECONDS
    await world.reconcile_until_quiet()
    assert len(world.objects("ControllerRevision")) == 1


async def test_a_container_that_others_added_and_that_never_ends_does_not_hold_the_claim() -> None:
    world = make_world(None, resources=SMALL)
    await world.settle()
    status = resolver_status(json.dumps({"facts": TOLD}))
    containers = [*status["containerStatuses"], MESH]
    running = {**status, "phase": "Running", "containerStatuses": containers}
    world.cluster.put({**get_pod(world), "status": running})
    await world.settle()
    check_refused(world)


async def test_a_refusal_outlives_the_pod_that_told_why() -> None:
    """Its node goes, say. A look anew would not end here, and then the pods would be made."""
    world = make_world(resources=SMALL)
    await world.settle()
    world.model_facts = None
    clean_up(world, POD)
    for _ in range(3):
        world.now += DISTURBED_SECONDS
        await world.settle()
    assert not world.objects("Deployment")
    check_refused(world)


async def test_an_operator_that_dies_while_what_was_told_is_kept_goes_on() -> None:
    world = make_world(resources=SMALL)
    await die_after_each_write(world)
    await world.settle()
    check_refused(world)
    assert list_writes_of(world, "ControllerRevision").count("create") < 8
    assert not world.pods()


async def test_days_and_a_new_operator_write_nothing() -> None:
    world = await make_refused()
    before = len(world.cluster.writes)
    for _ in range(3):
        world.now += 86400
        world.restart_operator()
        await world.settle()
    assert world.cluster.writes[before:] == []
    check_refused(world)


async def test_a_newer_operator_makes_nothing_anew() -> None:
    world = await make_refused()
    record, before = get_record(world), len(world.cluster.writes)
    world.settings = RenderSettings(runtime_image="registry.example.com/runtime:newer")
    world.restart_operator()
    await world.settle()
    assert list_writes_of(world, JOB.kind, before) == []
    assert get_record(world) == record


async def test_an_edit_and_going_back_looks_again() -> None:
    world = await make_refused()
    world.edit(resources=LARGE)
    await world.settle()
    assert len(world.pods()) == 2
    assert len(world.objects("ControllerRevision")) == 1, "what was refused goes with the edit"
    before = len(world.cluster.writes)
    world.edit(resources=SMALL)
    await world.settle()
    assert list_writes_of(world, JOB.kind, before) == ["create", "delete"]
    assert told(world, "Degraded") == ("True", "DoesNotFit")
    assert len(world.pods()) == 2, "what serves goes on"


async def test_more_replicas_leave_what_was_kept() -> None:
    world = await make_refused()
    world.edit(replicas=3)
    await world.settle()
    check_refused(world)


async def test_before_another_look_the_claim_is_looked_at_again() -> None:
    """The one that is there now may be another one, which no pod of ours may bind."""
    world = make_world(resources=SMALL)
    await world.settle()
    world.now += 86400
    world.put_claim("models", phase="Pending")
    (record,) = world.objects("ControllerRevision")
    world.cluster.remove(CONTROLLER_REVISION, KEY.namespace, record["metadata"]["name"])
    before = len(world.cluster.writes)
    await world.settle()
    assert list_writes_of(world, JOB.kind, before) == []
    check_served_unseen(world)


async def test_a_claim_that_is_being_deleted_is_not_looked_into() -> None:
    world = make_world()
    world.put_claim("models", deletionTimestamp=render_time(world.now))
    await world.settle()
    assert list_writes_of(world, JOB.kind) == []
    check_served_unseen(world)


async def test_a_model_that_fits_after_all_is_served_from_what_was_told() -> None:
    """As where a newer operator judges otherwise."""
    world = await make_refused()
    (record,) = world.objects("ControllerRevision")
    model = {**record["data"]["model"], "facts": FITTING}
    world.cluster.put({**record, "data": {**record["data"], "model": model}})
    before = len(world.cluster.writes)
    await world.settle()
    assert len(world.pods()) == 2
    assert list_writes_of(world, "Job", before) == []
    assert list_writes_of(world, "ControllerRevision", before) == ["delete", "create"], (
        "it is pending no more"
    )
    assert world.condition("Degraded")["status"] != "True"
