"""A model that nodes keep on their own disks, for all pods of a namespace there."""

from typing import Any

import pytest

from millrace_operator.kube.kinds import Obj
from millrace_operator.model.claims import GOOD_LOOK_SECONDS, LOOK_SECONDS
from millrace_runtime import contract
from testing.world import KEY, World
from tests.operator.model.test_fill import FOLDER, make_claim, read_templates, told
from tests.operator.model.test_resolve import EXTERNAL, FIRST, MAIN, SECOND, TELLING

ON_NODES: dict[str, Any] = {**MAIN, "cache": {"type": "NodeLocal"}}
KEPT = contract.name_kept(KEY.namespace, FOLDER)
CLAIM = {"claimName": "millrace-models"}
VOLUME = f"millrace-models-{KEY.namespace}"


def make_kept_world(*, has_claim: bool = True, **spec: Any) -> World:
    """A service whose source answers, in a namespace that the chart has prepared."""
    world = World(**{"model": ON_NODES, "scaling": EXTERNAL, "replicas": 2, **spec})
    world.model_revision = FIRST
    if has_claim:
        world.cluster.put(make_kept_claim())
    return world


def make_kept_claim(volume: str = VOLUME, phase: str = "Bound") -> Obj:
    """The claim of the namespace, as the chart makes it."""
    claim = make_claim("ReadWriteMany", name=CLAIM["claimName"])
    claim["spec"] |= {"storageClassName": "", "volumeName": volume}
    return claim | {"status": {"phase": phase}}


def read_pods(world: World) -> list[Obj]:
    """The templates of the Deployments' pods."""
    return [one["spec"]["template"] for one in world.objects("Deployment")]


async def test_the_pods_of_a_node_fetch_its_model_and_only_the_container_that_fetches_may_write() -> None:
    world = make_kept_world()
    await world.settle()
    (pod,) = read_templates(world)
    assert {"name": "model", "persistentVolumeClaim": CLAIM} in pod["volumes"]
    (fetcher,) = pod["initContainers"]
    to = f"/mnt/model/{FOLDER}"
    assert " ".join(fetcher["args"]) == f"fetch {MAIN['uri']} --to {to} --revision {FIRST} {TELLING}"
    assert {"name": "model", "mountPath": "/mnt/model"} in fetcher["volumeMounts"]
    assert "ephemeral-storage" not in str(fetcher["resources"]), "it is not the pod's own storage"
    (replica,) = pod["containers"]
    assert {"name": "model", "mountPath": "/mnt/model", "readOnly": True} in replica["volumeMounts"]
    assert replica["args"][:3] == ["serve", "--model", to]
    assert world.status["model"]["cache"] == {**CLAIM, "path": FOLDER}
    assert not world.objects("Job"), "no Job could fill the disks of nodes"
    assert told(world, "UpToDate")[0] == "True"


async def test_the_pod_tells_what_it_reads_and_prefers_a_node_that_has_it() -> None:
    world = make_kept_world(pod={"labels": {"team": "a"}, "annotations": {"note": "b"}})
    await world.settle()
    (pod,) = read_pods(world)
    assert pod["metadata"]["labels"][contract.LABEL_KEPT] == KEPT
    assert pod["metadata"]["labels"]["team"] == "a"
    assert pod["metadata"]["annotations"] == {"note": "b", contract.ANNOTATION_KEPT_BYTES: str(16 * 2**30)}
    affinity = pod["spec"]["affinity"]["nodeAffinity"]
    assert list(affinity) == ["preferredDuringSchedulingIgnoredDuringExecution"], "no node is left out"
    ((preference,),) = affinity.values()
    (term,) = preference["preference"]["matchExpressions"]
    assert term == {"key": f"models.millrace.dev/{KEPT}", "operator": "Exists"}


async def test_a_model_whose_size_is_unknown_is_kept_too() -> None:
    world = make_kept_world()
    world.model_num_bytes = None
    await world.settle()
    (pod,) = read_pods(world)
    assert contract.ANNOTATION_KEPT_BYTES not in pod["metadata"].get("annotations", {})
    assert pod["metadata"]["labels"][contract.LABEL_KEPT] == KEPT


async def test_a_namespace_that_was_not_prepared_says_who_does_it() -> None:
    world = make_kept_world(has_claim=False)
    await world.settle()
    assert told(world) == ("False", "CacheUnusable")
    message = world.condition("ModelReady")["message"]
    assert "no PersistentVolumeClaim millrace-models in this namespace" in message
    assert "nodeCache.namespaces" in message
    assert not world.objects("Deployment")
    assert (await world.reconcile()).look_again == LOOK_SECONDS

    world.cluster.put(make_kept_claim())
    world.now += LOOK_SECONDS
    await world.settle()
    assert told(world, "UpToDate")[0] == "True"
    assert (await world.reconcile()).look_again == GOOD_LOOK_SECONDS


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (make_claim("ReadWriteMany", name="millrace-models"), "is bound to no volume"),
        (make_kept_claim("pvc-5d8f7c9b"), "is bound to volume pvc-5d8f7c9b"),
        (make_kept_claim("millrace-models-search"), "is bound to volume millrace-models-search"),
        (make_kept_claim(phase="Pending"), "is bound to no volume"),
        (make_kept_claim(phase="Lost"), "is bound to no volume"),
    ],
)
async def test_a_claim_that_is_not_of_the_chart_is_not_believed(claim: Obj, words: str) -> None:
    world = make_kept_world(has_claim=False)
    world.cluster.put(claim)
    await world.settle()
    assert told(world) == ("False", "CacheUnusable")
    message = world.condition("ModelReady")["message"]
    assert f"millrace-models {words}" in message
    assert f"are volume {VOLUME}" in message
    assert "delete the claim" in message
    assert "nodeCache.namespaces" in message
    assert not world.objects("Deployment")

    world.cluster.put(make_kept_claim())
    world.now += LOOK_SECONDS
    await world.settle()
    assert told(world, "UpToDate")[0] == "True"


async def test_a_service_that_runs_on_such_a_claim_keeps_its_pods_and_says_so() -> None:
    world = make_kept_world()
    await world.settle()
    before = world.pods()
    world.cluster.put(make_kept_claim("pvc-5d8f7c9b"))
    world.now += GOOD_LOOK_SECONDS
    for _ in range(3):
        await world.settle()
        world.now += LOOK_SECONDS
    assert told(world, "Degraded") == ("True", "CacheUnusable")
    assert told(world, "Ready")[0] == "True"
    assert [pod["metadata"]["name"] for pod in world.pods()] == [pod["metadata"]["name"] for pod in before]
    world.edit(replicas=3)
    await world.settle()
    assert len(world.pods()) == 3


async def test_namespaces_share_nothing() -> None:
    assert contract.name_kept("shop", FOLDER) != contract.name_kept("bank", FOLDER)


async def test_another_revision_has_a_folder_of_its_own_and_a_rollback_finds_the_old_one() -> None:
    world = make_kept_world()
    await world.settle()
    first = read_pods(world)
    world.model_revision = SECOND
    world.edit(model={**ON_NODES, "uri": "hf://acme/chat@v2"})
    await world.settle()
    (second,) = read_pods(world)
    assert second["metadata"]["labels"][contract.LABEL_KEPT] not in (KEPT, None)
    world.edit(model=ON_NODES)
    await world.settle()
    assert read_pods(world) == first


async def test_who_fetches_shows_the_secret_and_the_replica_has_none() -> None:
    world = make_kept_world(model={**ON_NODES, "credentials": {"secretName": "hub"}})
    await world.settle()
    (pod,) = read_templates(world)
    assert pod["initContainers"][0]["envFrom"] == [{"secretRef": {"name": "hub"}}]
    assert "hub" not in str(pod["containers"])
