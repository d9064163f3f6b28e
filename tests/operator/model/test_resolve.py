"""A model whose address can move: a Job asks what is there, and all replicas get that and no other."""

from typing import Any

from millrace_operator.kube.kinds import JOB, POD, ObjectKey
from millrace_operator.observed.job_reports import LOST_SECONDS
from millrace_runtime import contract
from testing.world import KEY, World, make_pod, resolver_status
from tests.operator.test_argocd_health import judge

EXTERNAL = {"mode": "External", "minReplicas": 1, "maxReplicas": 1}
MAIN = {"uri": "hf://acme/chat@main"}
FIRST, SECOND = "1" * 40, "2" * 40
TELLING = "--progress-port 8002"
OWN = f"{TELLING} --no-sync"
"""Of a folder that is the pod's own."""
GATED = "millrace fetch: acme/chat is gated: ask for access at https://hub.example/acme/chat"


def make_world(model: dict[str, Any] | None = None, **spec: Any) -> World:
    return World(model=model or MAIN, scaling=EXTERNAL, **{"replicas": 2, **spec})


def fetched(world: World) -> list[str]:
    """What the pods of each Deployment fetch."""
    specs = [one["spec"]["template"]["spec"] for one in world.objects("Deployment")]
    return [" ".join(spec["initContainers"][0]["args"]) for spec in specs if "initContainers" in spec]


async def test_no_pod_is_made_before_the_source_has_told_its_revision() -> None:
    world = make_world()
    await world.settle()
    (job,) = world.objects("Job")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["fetch", MAIN["uri"], "--resolve", "/dev/termination-log"]
    assert not world.objects("Deployment")
    assert not world.objects("ControllerRevision")
    for name in ("Ready", "ModelReady", "UpToDate"):
        condition = world.condition(name)
        assert (condition["status"], condition["reason"]) == ("False", "Resolving"), name
    assert world.condition("Progressing")["reason"] == "Resolving"
    assert "which revision hf://acme/chat@main has" in world.condition("ModelReady")["message"]
    assert judge(world.service)[0] == "Progressing"
    assert world.status["replicas"] == 0
    assert "resolvedRevision" not in world.status["model"]


async def test_all_replicas_fetch_what_the_source_told_once() -> None:
    world = make_world()
    world.model_revision = FIRST
    await world.settle()
    assert fetched(world) == [f"fetch {MAIN['uri']} --to /mnt/model --revision {FIRST} {OWN}"]
    assert world.status["model"]["resolvedRevision"] == FIRST
    assert world.status["replicas"] == 2
    assert world.condition("UpToDate")["status"] == "True"
    assert not world.objects("Job"), "it has done its work"

    world.model_revision = SECOND
    world.restart_operator()
    world.edit(replicas=3)
    await world.settle()
    assert fetched(world) == [f"fetch {MAIN['uri']} --to /mnt/model --revision {FIRST} {OWN}"]
    assert len(world.pods()) == 3
    assert world.status["model"]["resolvedRevision"] == FIRST
    assert not world.objects("Job")


async def test_what_serves_goes_on_while_the_next_model_is_asked_for() -> None:
    world = make_world({"uri": "file:///models/stories"})
    await world.settle()
    serving = world.status["currentRevision"]
    world.edit(model=MAIN)
    await world.settle()
    assert world.deployments() == {serving: 2}
    assert world.status["currentRevision"] == serving != world.status["updateRevision"]
    assert world.condition("Ready")["status"] == "True"
    assert world.condition("UpToDate")["status"] == "False"
    assert world.condition("ModelReady")["reason"] == "Resolving"
    assert judge(world.service)[0] == "Progressing"

    world.model_revision = FIRST
    await world.settle()
    assert world.status["currentRevision"] == world.status["updateRevision"] != serving
    assert fetched(world) == [f"fetch {MAIN['uri']} --to /mnt/model --revision {FIRST} {OWN}"]
    assert world.condition("UpToDate")["status"] == "True"


async def test_going_back_serves_the_old_bytes_of_a_branch_that_has_moved_on() -> None:
    world = make_world()
    world.model_revision = FIRST
    await world.settle()
    world.edit(model={"uri": "file:///models/stories"})
    await world.settle()
    world.model_revision = SECOND
    world.edit(model=MAIN)
    await world.settle()
    assert fetched(world) == [f"fetch {MAIN['uri']} --to /mnt/model --revision {FIRST} {OWN}"]
    assert world.status["model"]["resolvedRevision"] == FIRST


async def test_a_source_that_refuses_is_told_and_what_serves_goes_on() -> None:
    world = make_world({"uri": "file:///models/stories"})
    await world.settle()
    serving = world.status["currentRevision"]
    world.edit(model=MAIN)
    await world.settle()
    (pod,) = [one for one in world.objects("Pod") if one not in world.pods()]
    world.cluster.put({**pod, "status": resolver_status(GATED, code=1)})
    await world.settle()
    degraded = world.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "FetchFailed")
    assert "acme/chat is gated" in degraded["message"]
    assert world.condition("ModelReady")["reason"] == "FetchFailed"
    assert world.condition("Ready")["status"] == "True"
    assert world.deployments() == {serving: 2}
    assert judge(world.service)[0] == "Degraded"

    world.model_revision = FIRST
    await world.settle()
    assert world.condition("Degraded")["status"] == "False"
    assert world.condition("UpToDate")["status"] == "True"


async def test_the_pod_of_somebody_else_is_not_believed() -> None:
    world = make_world()
    await world.settle()
    foreign = make_pod("foreign", **resolver_status('{"revision": "evil"}'))
    labels = {contract.LABEL_SERVICE: KEY.name, contract.LABEL_COMPONENT: contract.COMPONENT_RESOLVER}
    world.cluster.put({**foreign, "metadata": {**foreign["metadata"], "labels": labels}})
    await world.settle()
    assert not world.objects("Deployment")


async def test_words_that_name_no_revision_are_not_believed() -> None:
    world = make_world()
    world.model_revision = "$(rm -rf /)"
    await world.settle()
    assert not world.objects("Deployment")


async def test_a_job_that_has_left_no_word_is_made_anew() -> None:
    world = make_world()
    world.model_revision = FIRST
    await world.reconcile_until_quiet()
    world.run_controllers()
    (job,), (pod,) = world.objects("Job"), world.objects("Pod")
    world.cluster.remove(POD, KEY.namespace, pod["metadata"]["name"])
    await world.reconcile_until_quiet()
    assert world.objects("Job") == [job], "the watch of pods may be late"
    world.now += LOST_SECONDS + 1
    await world.settle()
    assert world.status["model"]["resolvedRevision"] == FIRST
    assert ObjectKey(JOB.kind, KEY.namespace, job["metadata"]["name"]) not in world.cluster.objects
    assert len(world.pods()) == 2


async def test_a_pod_asks_for_room_for_the_files_unless_its_owner_says_how_much() -> None:
    for requests, asked in (({}, "16612Mi"), ({"ephemeral-storage": "1Gi"}, "1Gi")):
        world = make_world(resources={"requests": requests})
        world.model_revision = FIRST
        await world.settle()
        (deployment,) = world.objects("Deployment")
        (fetcher,) = deployment["spec"]["template"]["spec"]["initContainers"]
        assert fetcher["resources"]["requests"]["ephemeral-storage"] == asked


async def test_the_job_gets_the_secret_and_room_of_its_own_whatever_a_replica_needs() -> None:
    world = make_world(
        {**MAIN, "credentials": {"secretName": "hub"}},
        resources={"limits": {"nvidia.com/gpu": 1, "memory": "200Gi"}, "requests": {"cpu": "32"}},
        pod={"nodeSelector": {"gpu": "a"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]},
    )
    await world.settle()
    (job,) = world.objects("Job")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "hub"}}]
    assert container["resources"] == {
        "limits": {"cpu": "1", "memory": "1Gi"},
        "requests": {"cpu": "50m", "memory": "128Mi"},
    }
    assert pod["tolerations"] == [{"key": "gpu", "operator": "Exists"}], "all nodes may have such a taint"
    assert "nodeSelector" not in pod
