"""A model in a claim: a Job looks at it before a pod is made of it, and never stands in the way."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from millrace_fit.accelerators import LABEL_MEMORY
from millrace_fit.facts import ModelFacts, find_facts
from millrace_operator.api.conditions import render_time
from millrace_operator.kube.errors import RefusedError, TransientError
from millrace_operator.kube.kinds import CONTROLLER_REVISION, JOB, PERSISTENT_VOLUME_CLAIM, POD, Kind, Obj
from millrace_operator.model.pending_revision import AT_HAND_SECONDS
from testing.checkpoints.models import MEDIUM, stored_of
from testing.world import KEY, World, resolver_status, unschedulable_status
from tests.operator.model.test_fit import FACTS
from tests.operator.model.test_resolve import EXTERNAL
from tests.operator.rollout.test_upgrade import LEFT, Upgraded
from tests.operator.test_argocd_health import judge
from tests.operator.watched import Watched

IN_CLAIM = {"uri": "pvc://models/llama/8b"}
SMALL = {"limits": {"memory": "8Gi"}}
LARGE = {"limits": {"memory": "64Gi"}}
PATIENT = {"progressDeadline": "1m"}
MOUNT = {"name": "model", "mountPath": "/mnt/model", "readOnly": True}
FAILED = "millrace fetch: /mnt/model/llama/8b holds no config.json"


def make_world(facts: ModelFacts | None = FACTS, **spec: Any) -> World:
    """A service whose model is in a claim, and what a look at it tells; None: the look does not end."""
    world = World(**{"model": IN_CLAIM, "scaling": EXTERNAL, "replicas": 2, **spec})
    world.put_claim("models")
    world.model_facts = facts and json.loads(facts.to_json())
    return world


def get_job(world: World) -> Obj:
    (job,) = world.objects("Job")
    return job


def get_pod(world: World) -> Obj:
    uid = get_job(world)["metadata"]["uid"]
    owned = [one for one in world.objects("Pod") if "ownerReferences" in one["metadata"]]
    (pod,) = [one for one in owned if one["metadata"]["ownerReferences"][0]["uid"] == uid]
    return pod


async def die_after_each_write(world: World) -> None:
    """Let the operator die after no write, after one, and so on, and another one go on."""
    for num_writes in range(8):
        world.cluster.faults.extend([*[None] * num_writes, *[TransientError("it died")] * 20])
        with suppress(TransientError):
            await world.reconcile()
        world.cluster.faults.clear()
        world.restart_operator()
        world.run_controllers()


def get_record(world: World) -> dict[str, Any]:
    (record,) = world.objects("ControllerRevision")
    data: dict[str, Any] = record["data"]
    return data


def told(world: World, condition: str = "ModelReady") -> tuple[str, str]:
    found = world.condition(condition)
    return found["status"], found["reason"]


def check_served_unseen(world: World) -> None:
    """The pods were made without a word of the model, as if nobody had looked."""
    assert len(world.pods()) == 2
    assert told(world, "UpToDate")[0] == "True"
    assert told(world, "Degraded") == ("False", "Healthy")
    assert "model" not in get_record(world)
    assert "fit" not in world.status["model"]
    assert not world.objects("Job")


async def test_a_job_looks_at_the_model_before_a_pod_is_made() -> None:
    world = make_world(None)
    await world.settle()
    pod = get_job(world)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"] == ["fetch", "file:///mnt/model/llama/8b", "--resolve", "/dev/termination-log"]
    assert MOUNT in container["volumeMounts"]
    claim = {"claimName": "models", "readOnly": True}
    assert {"name": "model", "persistentVolumeClaim": claim} in pod["volumes"]
    assert not world.objects("Deployment")
    assert not world.objects("ControllerRevision")
    for name in ("Ready", "ModelReady", "UpToDate"):
        assert told(world, name) == ("False", "Resolving"), name
    assert told(world, "Progressing") == ("True", "Resolving")
    words = "a Job looks at the model in PersistentVolumeClaim models"
    assert world.condition("ModelReady")["message"] == words
    assert told(world, "Degraded")[0] == "False"
    assert judge(world.service)[0] == "Progressing"


async def test_what_it_tells_is_in_status_and_in_the_record() -> None:
    world = make_world(resources=LARGE)
    await world.settle()
    assert len(world.pods()) == 2
    assert told(world, "UpToDate")[0] == "True"
    model = world.status["model"]
    expected = {
        "architecture": "LlamaForCausalLM",
        "parameters": 8_030_261_248,
        "contextLength": 131072,
        "sizeBytes": 16 * 2**30,
    }
    assert expected.items() <= model.items()
    assert {"fit", "fitMessage"} <= model.keys()
    assert "resolvedRevision" not in model
    assert get_record(world)["model"]["facts"] == json.loads(FACTS.to_json())
    assert "revision" not in get_record(world)["model"]
    assert not world.objects("Job"), "it has done its work"


async def test_the_pods_are_the_same_with_and_without_a_look() -> None:
    templates = []
    for facts in (FACTS, None):
        world = make_world(facts)
        await world.settle()
        world.now += AT_HAND_SECONDS
        await world.settle()
        templates.append(get_record(world)["template"])
    assert templates[0] == templates[1]


async def test_a_model_that_cannot_fit_starts_no_pod_and_an_edit_makes_it_run() -> None:
    world = make_world(resources=SMALL)
    await world.settle()
    for name in ("Ready", "ModelReady", "UpToDate"):
        assert told(world, name) == ("False", "DoesNotFit"), name
    assert "weights of 14.96 GiB" in world.condition("ModelReady")["message"]
    assert world.status["model"]["fit"] == "DoesNotFit"
    assert not world.objects("Deployment")
    assert not world.pods()
    before = len(world.cluster.writes)
    world.now += 3 * 86400
    world.restart_operator()
    await world.settle()
    assert world.cluster.writes[before:] == [], "it was told once, and for good"
    assert told(world) == ("False", "DoesNotFit")

    world.edit(resources=LARGE)
    await world.settle()
    assert len(world.pods()) == 2
    assert told(world, "UpToDate")[0] == "True"
    assert not world.objects("Job")


async def test_another_model_in_the_claim_is_looked_at_where_somebody_deletes_the_record() -> None:
    world = make_world(resources=SMALL)
    await world.settle()
    world.model_facts = json.loads(find_facts(MEDIUM, stored_of(MEDIUM)).to_json())
    (record,) = world.objects("ControllerRevision")
    world.cluster.remove(CONTROLLER_REVISION, KEY.namespace, record["metadata"]["name"])
    await world.settle()
    assert len(world.pods()) == 2
    assert world.status["model"]["fit"] == "Fits"


async def test_what_serves_goes_on_beside_a_model_that_does_not_fit() -> None:
    world = make_world(model={"uri": "file:///models/stories"}, resources=SMALL)
    await world.settle()
    serving = world.status["currentRevision"]
    world.edit(model=IN_CLAIM)
    await world.settle()
    assert world.deployments() == {serving: 2}
    assert told(world, "Ready")[0] == "True"
    assert told(world, "Degraded")[1] == "DoesNotFit"


async def test_the_nodes_that_are_there_refuse_no_model_at_hand() -> None:
    """An autoscaler may add the node that it ran on before, once there is a pod that needs it."""
    world = make_world(resources={"limits": {"nvidia.com/gpu": 1}})
    world.put_gpu_node("one", "NVIDIA-of-its-own", **{LABEL_MEMORY: "8192"})
    await world.settle()
    assert sum(world.deployments().values()) == 2


def clean_up(world: World, kind: Kind) -> None:
    """Delete the service's Jobs, or their pods, as a cleaner of the cluster does."""
    for obj in world.objects(kind.kind):
        if "ownerReferences" in obj["metadata"] and (
            kind is JOB or obj["status"].get("phase") == "Succeeded"
        ):
            world.cluster.remove(kind, KEY.namespace, obj["metadata"]["name"])


@pytest.mark.parametrize(("kind", "facts"), [(POD, FACTS), (JOB, None)])
async def test_who_cleans_up_after_jobs_at_once_keeps_no_service_from_starting(
    kind: Kind, facts: ModelFacts | None
) -> None:
    world = make_world(facts)
    watched = Watched(world)
    run = world._run_job

    def run_and_clean(job: Obj) -> bool:
        has_run = run(job)
        clean_up(world, kind)
        return has_run

    world._run_job = run_and_clean  # type: ignore[method-assign]
    with watched.queue.opened():
        for _ in range(20):
            await watched.run(10)
            clean_up(world, kind)
    assert len(world.pods()) == 2


async def test_numbers_that_status_cannot_hold_are_not_believed() -> None:
    world = make_world()
    assert world.model_facts is not None
    world.model_facts["shape"]["max_length"] = 10**30
    await world.settle()
    check_served_unseen(world)


async def test_a_look_that_does_not_end_is_waited_for_for_a_minute() -> None:
    world = make_world(None, rollout=PATIENT)
    await world.settle()
    world.now += AT_HAND_SECONDS - 1
    outcome = await world.reconcile()
    assert outcome.look_again == 2.0
    assert not world.objects("Deployment")
    world.now += 1
    await world.settle()
    check_served_unseen(world)


async def test_a_new_operator_counts_the_minute_from_the_jobs_creation() -> None:
    world = make_world(None)
    await world.settle()
    world.now += 45
    world.restart_operator()
    await world.settle()
    assert not world.objects("Deployment")
    world.now += 15
    world.restart_operator()
    await world.settle()
    check_served_unseen(world)


async def test_an_operator_that_dies_after_the_job_has_told_goes_on() -> None:
    world = make_world()
    await die_after_each_write(world)
    await world.settle()
    assert len(world.pods()) == 2
    assert get_record(world)["model"]["facts"] == json.loads(FACTS.to_json())
    assert not world.objects("Job")


@pytest.mark.parametrize(
    "status",
    [
        resolver_status(FAILED, code=3),
        unschedulable_status("0/1 nodes are available: node has no available volume zone."),
        {"phase": "Failed", "reason": "Evicted", "message": "the node was low on memory"},
        resolver_status("words of another version"),
        resolver_status('{"numBytes": 12}'),
    ],
    ids=["failed", "unschedulable", "evicted", "unreadable", "no facts"],
)
async def test_a_job_that_cannot_tell_is_not_waited_for(status: dict[str, Any]) -> None:
    world = make_world(None)
    await world.settle()
    world.cluster.put({**get_pod(world), "status": status})
    await world.settle()
    check_served_unseen(world)


async def test_a_job_that_is_given_up_is_not_waited_for() -> None:
    world = make_world(None)
    await world.settle()
    ended = {"type": "Failed", "status": "True", "lastTransitionTime": render_time(world.now)}
    world.cluster.put({**get_job(world), "status": {"conditions": [ended]}})
    await world.settle()
    check_served_unseen(world)


def no_jobs(obj: Obj) -> str | None:
    return "exceeded quota: count/jobs.batch" if obj["kind"] == "Job" else None


def no_jobs_nor_records(obj: Obj) -> str | None:
    return "exceeded quota" if obj["kind"] in ("Job", "ControllerRevision") else None


async def test_a_job_that_the_api_server_refuses_is_gone_without() -> None:
    world = make_world()
    world.cluster.refuse = no_jobs
    await world.settle()
    check_served_unseen(world)
    reasons = {event["reason"] for event in world.cluster.events}
    assert "ChildRefused" not in reasons, "nothing that serves waits for it"


async def test_a_job_and_a_record_that_are_refused_are_told_without_turns() -> None:
    world = make_world()
    world.cluster.refuse = no_jobs_nor_records
    for _ in range(6):
        await world.reconcile()
    before = len(world.cluster.writes)
    for _ in range(4):
        await world.reconcile()
    verbs = {(verb, kind) for verb, kind, _ in world.cluster.writes[before:]}
    assert verbs == {("create", "ControllerRevision")}
    assert told(world, "Degraded") == ("True", "ChildRefused")
    world.cluster.refuse = lambda _: None
    await world.settle()
    check_served_unseen(world)


async def test_a_webhook_for_jobs_that_is_away_is_no_obstacle() -> None:
    world = make_world()

    def fail(obj: Obj) -> str | None:
        if obj["kind"] == "Job":
            raise TransientError("HTTP 500: failed calling webhook")
        return None

    world.cluster.refuse = fail
    await world.settle()
    check_served_unseen(world)


async def test_a_job_of_somebody_else_with_the_name_is_left_alone() -> None:
    world = make_world(None)
    await world.settle()
    name = get_job(world)["metadata"]["name"]
    world = make_world()
    world.cluster.put({"kind": JOB.kind, "metadata": {"namespace": KEY.namespace, "name": name}})
    await world.reconcile_until_quiet()
    assert len(world.objects("Deployment")) == 1
    assert told(world, "Degraded")[0] == "False"


def remove_claim(world: World) -> None:
    world.cluster.remove(PERSISTENT_VOLUME_CLAIM, KEY.namespace, "models")


def unbind_claim(world: World) -> None:
    world.put_claim("models", phase="Pending")


def refuse_reads(world: World) -> None:
    world.cluster.read_faults.append(RefusedError("persistentvolumeclaims is forbidden"))


def fail_reads(world: World) -> None:
    world.cluster.read_faults.append(TransientError("504"))


@pytest.mark.parametrize("change", [remove_claim, unbind_claim, refuse_reads, fail_reads])
async def test_a_claim_that_is_not_known_to_be_bound_gets_no_job(change: Callable[[World], None]) -> None:
    """A Job's pod would bind it, and choose a volume where no replica can run."""
    world = make_world()
    change(world)
    await world.settle()
    check_served_unseen(world)
    assert "Job" not in {kind for _, kind, _ in world.cluster.writes}


async def test_a_revision_that_is_recorded_is_never_looked_at() -> None:
    world = Upgraded(LEFT["0.1.0 claim"])
    world.put_claim("weights")
    world.cluster.read_faults.append(None)
    world.model_facts = json.loads(FACTS.to_json())
    await world.settle()
    assert "Job" not in {kind for _, kind, _ in world.cluster.writes}
    assert "fit" not in world.status["model"]
    assert len(world.cluster.read_faults) == 1, "nobody asks for the claim either"


async def test_a_restart_and_more_replicas_look_at_nothing_again() -> None:
    world = make_world(resources=LARGE)
    await world.settle()
    before = world.status["model"]
    world.restart_operator()
    world.edit(replicas=3)
    await world.settle()
    assert [verb for verb, kind, _ in world.cluster.writes if kind == "Job"] == ["create", "delete"]
    assert world.status["model"] == before
    assert len(world.pods()) == 3


async def test_going_back_to_a_recorded_revision_makes_no_job() -> None:
    world = make_world(resources=LARGE)
    await world.settle()
    world.edit(engine={"maxSequences": 4})
    await world.settle()
    world.edit(engine={})
    await world.settle()
    assert [verb for verb, kind, _ in world.cluster.writes if kind == "Job"] == ["create", "delete"] * 2
    assert world.status["model"]["architecture"] == "LlamaForCausalLM"


async def test_the_job_runs_where_replicas_may_with_room_of_its_own_and_no_secret() -> None:
    pod = {
        "nodeSelector": {"zone": "a"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "imagePullSecrets": [{"name": "registry"}],
    }
    model = {**IN_CLAIM, "credentials": {"secretName": "hub"}}
    world = make_world(None, model=model, pod=pod, resources={"limits": {"nvidia.com/gpu": 1}})
    await world.settle()
    found = get_job(world)["spec"]["template"]["spec"]
    assert {field: found[field] for field in pod} == pod
    (container,) = found["containers"]
    assert container["resources"]["limits"] == {"cpu": "1", "memory": "1Gi"}
    assert found["securityContext"]["fsGroup"] == 65532
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert "hub" not in str(found)


async def test_a_revision_that_a_look_names_is_not_believed() -> None:
    world = make_world(None)
    await world.settle()
    words = json.dumps({"revision": "1" * 40, "facts": json.loads(FACTS.to_json())})
    world.cluster.put({**get_pod(world), "status": resolver_status(words)})
    await world.settle()
    assert len(world.pods()) == 2
    assert "resolvedRevision" not in world.status["model"]


async def test_a_clock_that_is_behind_stops_nothing() -> None:
    world = make_world(None)
    await world.settle()
    world.now -= 3600
    await world.settle()
    check_served_unseen(world)


async def test_a_model_in_the_image_is_not_looked_at() -> None:
    world = make_world(model={"uri": "file:///models/stories"})
    await world.settle()
    assert "Job" not in {kind for _, kind, _ in world.cluster.writes}
    assert len(world.pods()) == 2
