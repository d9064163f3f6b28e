"""A source that is asked anew by `kubectl millrace refresh`: what it has then is rolled out as by an edit."""

import json
from typing import Any

import pytest

from millrace_fit.facts import find_facts
from millrace_operator.api.annotations import REFRESH_ANNOTATION
from millrace_operator.api.types import Spec
from millrace_operator.kube.kinds import CONTROLLER_REVISION
from millrace_operator.rollout.revision import hash_inputs, read_hash, revision_inputs
from testing.checkpoints.models import LLAMA_8B, stored_of
from testing.world import KEY, World, crash_status, ready_status, resolver_status

EXTERNAL = {"mode": "External", "minReplicas": 1, "maxReplicas": 1}
MAIN = {"uri": "hf://acme/chat@main"}
FIRST, SECOND, THIRD = "1" * 40, "2" * 40, "3" * 40
GATED = "millrace fetch: acme/chat is gated: ask for access at https://hub.example/acme/chat"
FACTS = find_facts(LLAMA_8B, stored_of(LLAMA_8B))
LOADING = {
    "phase": "Running",
    "conditions": [{"type": "PodScheduled", "status": "True"}],
    "containerStatuses": [{"name": "replica", "started": False, "state": {"running": {}}}],
}


async def make_served(**spec: Any) -> World:
    """A service that serves what its branch had at first."""
    world = World(**{"model": MAIN, "scaling": EXTERNAL, "replicas": 2, **spec})
    world.model_revision = FIRST
    await world.settle()
    return world


def annotate(world: World, text: str | None) -> None:
    world.annotate(REFRESH_ANNOTATION, text)


async def refresh(world: World, revision: str | None, at: str = "1") -> None:
    """Let the branch have moved, somebody have its source asked, and all come to rest."""
    world.model_revision = revision
    annotate(world, f"{world.status['updateRevision']} at {at}")
    await world.settle()


def count_ready(world: World, revision: str) -> int:
    return sum(pod["status"] == ready_status() for pod in world.pods(revision))


def served(world: World) -> list[str]:
    """Which revision of the model each Deployment's pods fetch."""
    specs = [one["spec"]["template"]["spec"] for one in world.objects("Deployment")]
    fetched = [spec["initContainers"][0]["args"] for spec in specs]
    return [words[words.index("--revision") + 1] for words in fetched]


async def test_a_branch_that_stayed_restarts_nothing_and_is_asked_once() -> None:
    world = await make_served()
    before, pods = world.deployments(), world.pods()
    await refresh(world, FIRST)
    world.restart_operator()
    world.model_revision = SECOND
    await world.settle()
    assert (world.deployments(), world.pods(), world.objects("Job")) == (before, pods, [])
    assert world.status["currentRevision"] == world.status["updateRevision"] == next(iter(before))
    assert world.condition("UpToDate")["status"] == "True"
    assert await world.reconcile_until_quiet() == 0


async def test_what_a_branch_has_now_is_rolled_out_and_stays_without_the_annotation() -> None:
    world = await make_served()
    (old,) = world.deployments()
    await refresh(world, SECOND)
    (new,) = world.deployments()
    assert (served(world), world.status["model"]["resolvedRevision"]) == ([SECOND], SECOND)
    assert world.status["currentRevision"] == world.status["updateRevision"] == new != old
    world.model_revision = THIRD
    annotate(world, None)
    world.restart_operator()
    await world.settle()
    assert world.deployments() == {new: 2}

    await refresh(world, FIRST, "2")
    assert world.deployments() == {old: 2}, "it is known already"
    world.edit(engine={"maxSequences": 4})
    await world.settle()
    world.model_revision = THIRD
    world.edit(engine={})
    await world.settle()
    assert world.deployments() == {old: 2}, "an edit that is undone asks nobody"


async def test_while_the_source_refuses_what_serves_goes_on_and_another_edit_ends_the_asking() -> None:
    world = await make_served()
    (old,) = world.deployments()
    await refresh(world, None)
    (pod,) = [one for one in world.objects("Pod") if one not in world.pods()]
    world.cluster.put({**pod, "status": resolver_status(GATED, code=1)})
    await world.settle()
    assert "acme/chat is gated" in world.condition("Degraded")["message"]
    assert world.condition("Ready")["status"] == "True"
    assert world.deployments() == {old: 2}
    annotate(world, None)
    await world.settle()
    assert (world.deployments(), world.objects("Job")) == ({old: 2}, [])
    assert world.condition("Degraded")["status"] == "False"


async def test_a_second_refresh_while_the_source_is_away_goes_on_asking() -> None:
    world = await make_served()
    (old,) = world.deployments()
    for at in "123":
        await refresh(world, None, at)
        assert world.status["updateRevision"] == old, "nobody knows of another one"
        assert (len(world.objects("Job")), world.condition("UpToDate")["reason"]) == (1, "Resolving")
    world.model_revision = SECOND
    await world.settle()
    assert (served(world), world.objects("Job")) == ([SECOND], [])
    await refresh(world, THIRD, "4")
    assert served(world) == [THIRD]


@pytest.mark.parametrize("found", [None, FIRST])
async def test_a_refresh_amid_a_rollout_lets_it_go_on(found: str | None) -> None:
    world = await make_served(replicas=4)
    (old,) = world.deployments()
    world.edit(engine={"maxSequences": 4})
    await world.reconcile()
    new = world.status["updateRevision"]
    while new == old or count_ready(world, new) < 3:
        world.run_controllers()
        await world.reconcile()
        new = world.status["updateRevision"]
    started = world.status["rollout"]["startedAt"]
    world.model_revision = found
    annotate(world, f"{new} at 1")
    while world.run_controllers() or await world.reconcile_until_quiet():
        assert count_ready(world, new) >= 3
        assert world.status.get("rollout", {"startedAt": started})["startedAt"] == started
    assert (world.deployments(), world.status["currentRevision"]) == ({new: 4}, new)


async def test_a_refresh_leaves_the_first_pods_of_a_service_as_they_load() -> None:
    world = World(model=MAIN, scaling=EXTERNAL, replicas=2)
    world.model_revision = FIRST
    await world.reconcile()
    while not (first := world.deployments()):
        world.run_controllers()
        await world.reconcile()
    world.broken[next(iter(first))] = LOADING
    await world.settle()
    pods = world.pods()
    await refresh(world, None)
    assert (world.deployments(), world.pods(), world.objects("Job") != []) == (first, pods, True)
    await refresh(world, FIRST, "2")
    assert (world.deployments(), world.pods(), world.objects("Job")) == (first, pods, [])


async def test_refreshes_that_find_nothing_new_push_no_revision_out_of_the_history() -> None:
    world = await make_served()
    first, known = served(world), world.deployments()
    for number in range(2, 5):
        world.edit(engine={"maxSequences": number})
        await world.settle()
        known |= world.deployments()
    for night in range(12):
        await refresh(world, FIRST, f"night {night}")
    records = [read_hash(one) for one in world.objects("ControllerRevision")]
    assert set(known) < set(records), "each of them can be gone back to"
    assert len(records) == len(known) + 1, "the refresh that the annotation names"
    world.model_revision = SECOND
    world.edit(engine={})
    await world.settle()
    assert served(world) == first


async def test_a_spec_that_nobody_knows_any_more_is_asked_for_once_in_spite_of_the_annotation() -> None:
    world = await make_served()
    await refresh(world, SECOND)
    for number in range(2, 14):
        world.edit(engine={"maxSequences": number})
        await world.settle()
    before = len(world.cluster.writes)
    world.model_revision = THIRD
    world.edit(engine={})
    await world.settle()
    made = [kind for verb, kind, _ in world.cluster.writes[before:] if verb == "create"]
    assert (served(world), made.count("Job"), made.count("Deployment")) == ([THIRD], 1, 1)


async def test_a_model_that_does_not_fit_is_not_rolled_out() -> None:
    world = await make_served(resources={"limits": {"memory": "8Gi"}})
    before, world.model_facts = world.deployments(), json.loads(FACTS.to_json())
    await refresh(world, SECOND)
    assert world.condition("ModelReady")["reason"] == "DoesNotFit"
    assert (world.deployments(), world.condition("Ready")["status"]) == (before, "True")
    annotate(world, None)
    await world.settle()
    assert (world.deployments(), world.condition("ModelReady")["reason"]) == (before, "Loaded")


async def test_one_that_was_given_up_is_tried_again_as_by_an_edit() -> None:
    world = await make_served()
    (old,) = world.deployments()
    world.model_revision = SECOND
    annotate(world, f"{old} at 1")
    while (bad := world.status["updateRevision"]) == old:
        await world.reconcile_until_quiet()
        world.run_controllers()
    world.broken[bad] = crash_status()
    await world.settle()
    world.now += 2400
    await world.settle()
    assert world.condition("Degraded")["reason"] == "RolledBack"
    await refresh(world, SECOND, "2")
    assert (world.deployments(), world.condition("Degraded")["reason"]) == ({old: 2, bad: 1}, "Crashing")
    await refresh(world, THIRD, "3")
    assert served(world) == [THIRD]


@pytest.mark.parametrize("text", ["", "nonsense", "5f6c0a91d2 at 1", "at", " at 1"])
async def test_of_another_spec_the_annotation_says_nothing(text: str) -> None:
    world = await make_served()
    before, world.model_revision = world.deployments(), SECOND
    annotate(world, text)
    await world.settle()
    assert (world.deployments(), world.objects("Job")) == (before, [])


@pytest.mark.parametrize("uri", ["file:///models/m", f"hf://acme/chat@{FIRST}"])
async def test_what_never_changes_is_not_asked_for(uri: str) -> None:
    world = await make_served(model={"uri": uri})
    before, pods = world.deployments(), world.pods()
    await refresh(world, SECOND)
    assert (world.deployments(), world.pods(), world.objects("Job")) == (before, pods, [])


async def test_what_a_service_that_followed_its_branch_has_is_kept() -> None:
    """An earlier version of ours named what it had found in the inputs of such a revision."""
    world = await make_served()
    await refresh(world, SECOND)
    (record,) = [one for one in world.objects("ControllerRevision") if one["revision"] == 2]
    first = revision_inputs(Spec.model_validate(world.service["spec"]))
    inputs = {**first, "model": {**first["model"], "resolved": SECOND}}
    former, digest = world.status["updateRevision"], hash_inputs(inputs)
    for one in [record, *world.objects("Deployment")]:
        text = json.dumps({**one, "data": {**record["data"], "inputs": inputs}}).replace(former, digest)
        world.cluster.remove(CONTROLLER_REVISION, KEY.namespace, one["metadata"]["name"])
        world.cluster.put(json.loads(text))
    world.cluster.put(
        {**world.service, "status": json.loads(json.dumps(world.status).replace(former, digest))}
    )
    annotate(world, None)
    world.model_revision = THIRD
    await world.settle()
    assert served(world) == [SECOND]
    assert world.status["updateRevision"] == digest
