"""A model in a claim that was refused: what was told stays, and nothing holds the claim."""

import json

import pytest

from millrace_fit.facts import find_facts
from millrace_operator.cluster.errors import TransientError
from millrace_operator.cluster.kinds import JOB, POD, Obj
from millrace_operator.reconcile.jobs import LOST_SECONDS
from millrace_operator.reconcile.looking import DISTURBED_SECONDS
from millrace_operator.reconcile.render.metadata import told_name
from millrace_operator.reconcile.render.settings import RenderSettings
from millrace_operator.resources.conditions import render_time
from millrace_operator.resources.rules import NAME_MAX_LENGTH
from millrace_runtime import contract
from testing.checkpoints.models import MEDIUM, stored_of
from testing.world import KEY, World, make_service, resolver_status
from tests.operator.reconcile.test_fitting import FACTS
from tests.operator.reconcile.test_looking import (
    LARGE,
    SMALL,
    check_served_unseen,
    clean_up,
    die_after_each_write,
    get_job,
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
    """No pod is made of the model, and one Job without a pod keeps why."""
    assert told(world) == ("False", "DoesNotFit")
    assert not world.objects("Deployment")
    assert not world.objects("ControllerRevision")
    assert not world.objects("Pod"), "one would hold the claim, also when it has ended"
    job = get_job(world)
    assert job["metadata"]["name"].endswith("-t")
    assert job["spec"]["suspend"]
    assert json.loads(job["metadata"]["annotations"][contract.ANNOTATION_FOUND])["facts"] == TOLD


def list_writes_of_jobs(world: World, since: int = 0) -> list[tuple[str, bool]]:
    """Return what was done to Jobs, and whether that was one which keeps what was told."""
    writes = world.cluster.writes[since:]
    return [(verb, name.endswith("-t")) for verb, kind, name in writes if kind == JOB.kind]


async def take_turns(world: World, count: int = 8) -> None:
    """As `settle`, where something is refused again and again."""
    for _ in range(count):
        await world.reconcile()
        world.run_controllers()


def no_keepers(obj: Obj) -> str | None:
    return "exceeded quota: count/jobs.batch" if obj["metadata"]["name"].endswith("-t") else None


async def test_what_was_told_is_kept_before_the_pod_that_told_it_goes() -> None:
    world = await make_refused()
    assert list_writes_of_jobs(world) == [("create", False), ("create", True), ("delete", False)]


async def test_whoever_lifts_the_suspension_gets_no_pod_and_no_claim_is_mounted() -> None:
    world = await make_refused()
    job = get_job(world)
    world.cluster.put({**job, "spec": {**job["spec"], "suspend": False}})
    world.now += 1800
    await world.settle()
    assert not world.objects("Pod")
    template = get_job(world)["spec"]["template"]["spec"]
    assert not any("persistentVolumeClaim" in volume for volume in template["volumes"])
    mounted = {mount["name"] for mount in template["containers"][0]["volumeMounts"]}
    assert mounted <= {volume["name"] for volume in template["volumes"]}


async def test_a_claim_is_read_again_where_what_was_kept_cannot_be_read() -> None:
    """Another claim may have its name by then."""
    world = await make_refused()
    world.put_claim("models", phase="Pending")
    job = get_job(world)
    kept = {**job["metadata"]["annotations"], contract.ANNOTATION_FOUND: "torn"}
    world.cluster.put({**job, "metadata": {**job["metadata"], "annotations": kept}})
    world.now += 86400
    before = len(world.cluster.writes)
    await world.settle()
    assert ("create", False) not in list_writes_of_jobs(world, before)


async def test_a_claim_is_read_again_where_what_was_kept_has_no_facts() -> None:
    """A revision alone says nothing of a model in a claim, so the model is looked at anew."""
    world = await make_refused()
    world.put_claim("models", phase="Pending")
    write_kept(world, json.dumps({"revision": "1" * 40}))
    world.now += 86400
    before = len(world.cluster.writes)
    await world.settle()
    assert ("create", False) not in list_writes_of_jobs(world, before)
    check_served_unseen(world)


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
    assert list_writes_of_jobs(world).count(("create", True)) < 8
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
    job, before = get_job(world), len(world.cluster.writes)
    world.settings = RenderSettings(runtime_image="registry.example.com/runtime:newer")
    world.restart_operator()
    await world.settle()
    assert list_writes_of_jobs(world, before) == []
    assert get_job(world) == job


async def test_what_an_earlier_operator_left_in_a_pod_is_kept_without_another_look() -> None:
    world = make_world(resources=SMALL)
    world.cluster.refuse = no_keepers
    await take_turns(world)
    before, world.cluster.refuse = len(world.cluster.writes), lambda _: None
    world.settings = RenderSettings(runtime_image="registry.example.com/runtime:newer")
    world.restart_operator()
    await world.settle()
    assert list_writes_of_jobs(world, before) == [("create", True), ("delete", False)]
    check_refused(world)


async def test_an_edit_ends_what_was_kept_and_going_back_looks_anew() -> None:
    world = await make_refused()
    world.edit(resources=LARGE)
    await world.settle()
    assert len(world.pods()) == 2
    assert not world.objects("Job")
    before = len(world.cluster.writes)
    world.edit(resources=SMALL)
    await world.settle()
    assert ("create", False) in list_writes_of_jobs(world, before)
    assert told(world, "Degraded") == ("True", "DoesNotFit")
    assert len(world.pods()) == 2, "what serves goes on"


async def test_more_replicas_leave_what_was_kept() -> None:
    world = await make_refused()
    job = get_job(world)
    world.edit(replicas=3)
    await world.settle()
    assert get_job(world) == job
    check_refused(world)


async def test_a_model_that_fits_after_all_goes_on_from_what_was_kept() -> None:
    """As where a newer operator judges otherwise. A revision in it is not believed."""
    world = await make_refused()
    before = len(world.cluster.writes)
    write_kept(world, json.dumps({"revision": "1" * 40, "facts": FITTING}))
    await world.settle()
    assert len(world.pods()) == 2
    assert get_record(world)["model"]["facts"] == FITTING
    assert "revision" not in get_record(world)["model"]
    assert list_writes_of_jobs(world, before) == [("delete", True)]


def write_kept(world: World, words: str) -> None:
    """Write as somebody else what a Job keeps."""
    job = get_job(world)
    annotations = {**job["metadata"]["annotations"], contract.ANNOTATION_FOUND: words}
    world.cluster.put({**job, "metadata": {**job["metadata"], "annotations": annotations}})


@pytest.mark.parametrize(
    "words",
    [
        "",
        "{",
        "[" * 100_000,
        "[]",
        json.dumps({"revision": "1" * 40}),
        json.dumps({"facts": {"version": 99}}),
    ],
    ids=["empty", "broken", "deep", "a list", "a revision alone", "facts of another version"],
)
async def test_where_what_was_kept_cannot_be_read_the_model_is_looked_at_anew(words: str) -> None:
    world = await make_refused()
    before = len(world.cluster.writes)
    write_kept(world, words)
    await world.settle()
    assert ("create", False) in list_writes_of_jobs(world, before)
    check_refused(world)


async def test_where_nothing_can_be_kept_the_pod_is_believed_while_it_is_there() -> None:
    world = make_world(resources=SMALL)
    world.cluster.refuse = no_keepers
    await take_turns(world)
    assert told(world) == ("False", "DoesNotFit")
    assert told(world, "Degraded") == ("True", "DoesNotFit")
    job = get_job(world)
    before = len(world.cluster.writes)
    await take_turns(world)
    assert set(list_writes_of_jobs(world, before)) == {("create", True)}, "it is tried again and again"
    assert {kind for _, kind, _ in world.cluster.writes[before:]} == {JOB.kind}, "status takes no turns"

    clean_up(world, POD)
    await take_turns(world)
    world.now += LOST_SECONDS
    await take_turns(world)
    assert get_job(world)["metadata"]["uid"] != job["metadata"]["uid"]
    assert told(world) == ("False", "DoesNotFit")
    assert not world.objects("Deployment")
    world.cluster.refuse = lambda _: None
    await world.settle()
    check_refused(world)


def strip(obj: Obj) -> None:
    """Do as a webhook that removes annotations which it does not know."""
    obj["metadata"].get("annotations", {}).pop(contract.ANNOTATION_FOUND, None)


async def test_the_pod_that_told_is_kept_where_the_job_that_is_to_keep_it_does_not() -> None:
    world = make_world(resources=SMALL)
    world.cluster.refuse = strip
    await world.settle()
    assert told(world) == ("False", "DoesNotFit")
    assert list_writes_of_jobs(world) == [("create", False), ("create", True)]
    assert not world.objects("Deployment")


async def test_a_webhook_that_is_away_holds_up_nothing_else() -> None:
    world = make_world(model={"uri": "file:///models/stories"}, resources=SMALL)
    await world.settle()

    def fail(obj: Obj) -> str | None:
        if obj["metadata"]["name"].endswith("-t"):
            raise TransientError("HTTP 500: failed calling webhook")
        return None

    world.cluster.refuse = fail
    world.edit(model={"uri": "pvc://models/llama/8b"})
    await take_turns(world)
    assert told(world, "Degraded")[1] == "DoesNotFit"
    world.edit(replicas=3)
    await take_turns(world)
    assert len(world.pods()) == 3


async def test_a_job_of_somebody_else_with_the_name_is_left_alone() -> None:
    world = make_world(None, resources=SMALL)
    await world.settle()
    name = get_job(world)["metadata"]["name"]
    world = make_world(resources=SMALL)
    theirs = {"namespace": KEY.namespace, "name": f"{name}-t"}
    world.cluster.put({"kind": JOB.kind, "metadata": theirs, "spec": {"suspend": True}})
    await world.settle()
    assert told(world) == ("False", "DoesNotFit")
    assert "Job named" not in world.condition("Degraded")["message"], "nothing that serves waits for it"
    assert {job["metadata"]["name"] for job in world.objects("Job")} == {name, f"{name}-t"}
    assert not world.objects("Deployment")


async def test_before_another_look_the_claim_is_looked_at_again() -> None:
    """The one that is there now may be another one, which no pod of ours may bind."""
    world = make_world(resources=SMALL)
    await world.settle()
    world.now += 86400
    world.put_claim("models", phase="Pending")
    world.cluster.remove(JOB, KEY.namespace, get_job(world)["metadata"]["name"])
    before = len(world.cluster.writes)
    await world.settle()
    assert list_writes_of_jobs(world, before) == []
    check_served_unseen(world)


async def test_a_claim_that_is_being_deleted_is_not_looked_into() -> None:
    world = make_world()
    world.put_claim("models", deletionTimestamp=render_time(world.now))
    await world.settle()
    assert list_writes_of_jobs(world) == []
    check_served_unseen(world)


def test_the_longest_name_of_a_service_leaves_room_for_the_jobs() -> None:
    service = make_service()
    service["metadata"]["name"] = "c" * NAME_MAX_LENGTH
    assert len(told_name(service, "0123456789")) == 63
