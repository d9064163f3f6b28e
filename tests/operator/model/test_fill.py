"""A model that a Job fetches into a claim once, for all replicas."""

import copy
from dataclasses import replace
from typing import Any

import pytest

from millrace_operator.api.conditions import render_time
from millrace_operator.api.rules import NAME_MAX_LENGTH
from millrace_operator.kube.errors import RefusedError, TransientError
from millrace_operator.kube.kinds import JOB, PERSISTENT_VOLUME_CLAIM, POD, Obj
from millrace_operator.model.claims import BLIND_LOOK_SECONDS, GOOD_LOOK_SECONDS, LOOK_SECONDS
from millrace_operator.model.found_model import name_folder
from millrace_operator.observed.fetch_run import MOST_RESTARTS
from millrace_operator.observed.job_reports import LOST_SECONDS
from millrace_operator.observed.snapshot import Fetched
from millrace_operator.render.child import fill_name
from millrace_operator.render.settings import RenderSettings
from millrace_operator.status.status import PAUSE_SECONDS
from testing.world import KEY, World, crash_status, make_service, resolver_status
from tests.operator.model.test_resolve import EXTERNAL, FIRST, GATED, MAIN, SECOND, TELLING
from tests.operator.status.test_write_interval import count_writes
from tests.operator.test_argocd_health import judge

CACHED: dict[str, Any] = {**MAIN, "cache": {"type": "PersistentVolumeClaim", "claimName": "models"}}
EMPTY_CLAIM: dict[str, Any] = {**CACHED, "cache": {**CACHED["cache"], "claimName": "of-nobody"}}
FOLDER = name_folder(MAIN["uri"], FIRST)
GIB = 2**30


def make_claim(*modes: str, name: str = "models") -> Obj:
    return {
        "apiVersion": "v1",
        "kind": PERSISTENT_VOLUME_CLAIM.kind,
        "metadata": {"namespace": KEY.namespace, "name": name},
        "spec": {"accessModes": list(modes)},
    }


def make_world(*modes: str, **spec: Any) -> World:
    """A service whose source answers, and whose model is not in the claim yet."""
    world = World(**{"model": CACHED, "scaling": EXTERNAL, "replicas": 2, **spec})
    world.model_revision, world.is_filled = FIRST, False
    if modes:
        world.cluster.put(make_claim(*modes))
    return world


async def make_filling(**spec: Any) -> World:
    world = make_world("ReadWriteMany", **spec)
    await world.settle()
    return world


def find_filler(world: World) -> Obj | None:
    return next((job for job in world.objects("Job") if job["metadata"]["name"].endswith("-f")), None)


def get_filler(world: World) -> Obj:
    job = find_filler(world)
    assert job is not None
    return job


def get_pod(world: World) -> Obj:
    """The pod of the Job that fills the claim."""
    uid = get_filler(world)["metadata"]["uid"]
    pods = world.objects("Pod")
    return next(one for one in pods if one["metadata"].get("ownerReferences", [{}])[0].get("uid") == uid)


def told(world: World, condition: str = "ModelReady") -> tuple[str, str]:
    found = world.condition(condition)
    return found["status"], found["reason"]


def read_templates(world: World) -> list[Obj]:
    return [one["spec"]["template"]["spec"] for one in world.objects("Deployment")]


async def test_the_model_is_fetched_once_and_then_all_pods_read_it() -> None:
    world = await make_filling()
    (container,) = get_filler(world)["spec"]["template"]["spec"]["containers"]
    to = f"/mnt/model/{FOLDER}"
    assert " ".join(container["args"]) == f"fetch {MAIN['uri']} --to {to} --revision {FIRST} {TELLING}"
    assert {"name": "model", "mountPath": "/mnt/model"} in container["volumeMounts"]
    assert len(world.objects("Job")) == 1, "the record has what the first one was told"
    assert not world.objects("Deployment")
    for name in ("Ready", "ModelReady", "UpToDate"):
        assert told(world, name) == ("False", "Fetching"), name
    assert told(world, "Progressing") == ("True", "Fetching")
    assert "into PersistentVolumeClaim models" in world.condition("ModelReady")["message"]
    assert "cache" not in world.status["model"]
    assert judge(world.service)[0] == "Progressing"

    world.is_filled = True
    await world.settle()
    (pod,) = read_templates(world)
    assert "initContainers" not in pod
    claim = {"claimName": "models", "readOnly": True}
    assert {"name": "model", "persistentVolumeClaim": claim} in pod["volumes"]
    assert pod["containers"][0]["args"][:3] == ["serve", "--model", to]
    assert world.status["model"]["cache"] == {"claimName": "models", "path": FOLDER}
    assert world.status["model"]["resolvedRevision"] == FIRST
    assert told(world, "UpToDate")[0] == "True"
    assert not world.objects("Job"), "they have done their work"
    assert len(world.pods()) == 2


async def test_a_restart_and_more_replicas_ask_and_fetch_nothing_again() -> None:
    world = await make_filling()
    world.is_filled = True
    await world.settle()
    templates = read_templates(world)
    world.model_revision = SECOND
    world.restart_operator()
    world.edit(replicas=5, model={**CACHED, "quantization": {"weights": "FromCheckpoint"}})
    await world.settle()
    assert read_templates(world) == templates
    assert not world.objects("Job")
    assert len(world.pods()) == 5


async def test_no_job_is_made_where_a_replica_has_just_become_ready_with_the_model() -> None:
    world = await make_filling(replicas=1)
    world.is_filled = True
    await world.settle()
    (pod,) = world.pods()
    world.cluster.put({**pod, "status": {}})
    await world.reconcile_until_quiet()
    world.edit(engine={"maxSequences": 4})
    await world.reconcile()
    (job,) = world.objects("Job")
    asker = world._make_job_pod(job)
    assert world.status["readyReplicas"] == 0
    world.cluster.put({**asker, "status": resolver_status(f'{{"revision": "{FIRST}"}}')})
    world.cluster.put({**world.pods()[0], "status": pod["status"]})
    await world.reconcile()
    assert find_filler(world) is None
    assert len(world.deployments()) == 2


async def test_the_job_has_the_secret_and_the_replicas_do_not() -> None:
    model = {**CACHED, "credentials": {"secretName": "hub"}}
    pod = {"nodeSelector": {"zone": "a"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}
    resources = {"limits": {"nvidia.com/gpu": 1, "memory": "200Gi"}}
    world = await make_filling(model=model, pod=pod, resources=resources)
    filler = get_filler(world)["spec"]["template"]["spec"]
    (container,) = filler["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "hub"}}]
    assert container["resources"]["limits"] == {"cpu": "4", "memory": "2Gi"}
    assert "ephemeral-storage" not in container["resources"]["requests"], "nothing is kept on the node"
    assert filler["nodeSelector"] == {"zone": "a"}, "the claim's first pod may decide where its volume is"
    assert filler["tolerations"] == pod["tolerations"]
    world.is_filled = True
    await world.settle()
    assert "hub" not in str(read_templates(world))


async def test_how_far_it_is_stands_in_status() -> None:
    world = await make_filling()
    name = get_pod(world)["metadata"]["name"]
    world.fetched = {name: Fetched(16 * GIB, 4 * GIB, 100 * 2**20)}
    await world.settle()
    assert "models: 25 % of 17.2 GB, 104.9 MB/s" in world.condition("ModelReady")["message"]
    assert (await world.reconcile()).look_again == GOOD_LOOK_SECONDS


async def test_a_job_that_fills_a_claim_for_hours_is_not_late_and_one_that_fails_often_is() -> None:
    world = await make_filling()
    pod, ended = get_pod(world), {"exitCode": 1, "message": "millrace fetch: fewer than 64 KiB/s"}

    def tell(restarts: int) -> None:
        state = {"running": {"startedAt": render_time(world.now)}}
        last = {"terminated": {**ended, "finishedAt": render_time(world.now)}} if restarts else {}
        fetch = {"name": "fetch", "restartCount": restarts, "state": state, "lastState": last}
        status = {"phase": "Running", "startTime": began, "containerStatuses": [fetch]}
        world.cluster.put({**pod, "status": status})

    began = render_time(world.now)
    tell(0)
    for _ in range(4):
        world.now += 1800
        await world.settle()
        world.restart_operator()
        assert told(world, "Degraded")[0] == "False"
    tell(MOST_RESTARTS + 15)
    world.now += 1801
    await world.settle()
    assert (told(world, "Degraded")[0], told(world)) == ("False", ("False", "Fetching"))
    tell(MOST_RESTARTS + 16)
    await world.settle()
    assert told(world, "Degraded") == ("True", "DeadlineExceeded")
    assert "it failed before: fewer than 64 KiB/s" in world.condition("Degraded")["message"]


async def test_a_fetch_that_never_begins_is_told_after_its_deadline() -> None:
    world = make_world("ReadWriteMany")
    world.is_filled = False
    world.quota = 0
    await world.settle()
    assert told(world, "Degraded")[0] == "False"
    assert (await world.reconcile()).look_again == GOOD_LOOK_SECONDS
    world.now += 1801
    await world.settle()
    assert told(world, "Degraded") == ("True", "DeadlineExceeded"), "the Job that asks"
    world.quota = 1
    await world.settle()
    assert told(world, "Degraded")[0] == "False"
    assert find_filler(world), "its pod is refused: the first one's is there"
    world.now += 1801
    await world.settle()
    assert told(world, "Degraded") == ("True", "DeadlineExceeded")
    assert (
        f"kubectl describe job {get_filler(world)['metadata']['name']}"
        in world.condition("Degraded")["message"]
    )


async def test_a_pod_that_failed_before_does_not_hide_the_one_that_fetches() -> None:
    world = await make_filling()
    pod = get_pod(world)
    failed = {"phase": "Failed", "reason": "Evicted", "message": "the node was low on memory"}
    world.cluster.put({**pod, "status": failed})
    running = {
        "name": "fetch",
        "restartCount": 1,
        "state": {"running": {"startedAt": render_time(world.now - 2)}},
    }
    running["lastState"] = resolver_status(GATED, code=1)["containerStatuses"][0]["lastState"]
    metadata = {**pod["metadata"], "name": "chat-newer", "uid": "newer"}
    metadata["creationTimestamp"] = render_time(world.now + 60)
    world.cluster.put(
        {**pod, "metadata": metadata, "status": {"phase": "Running", "containerStatuses": [running]}}
    )
    world.fetched = {"chat-newer": Fetched(16 * GIB, 4 * GIB, 0)}
    world.fetched[pod["metadata"]["name"]] = Fetched(16 * GIB, 1 * GIB, 0)
    await world.settle()
    assert told(world, "Degraded")[0] == "False"
    assert told(world) == ("False", "Fetching")
    assert "25 %" in world.condition("ModelReady")["message"]
    assert world.status["model"]["fetched"] == "25%"


async def test_the_column_of_a_fetch_moves_with_its_words_and_costs_no_write_of_its_own() -> None:
    world = await make_filling()
    pod = get_pod(world)
    state = {"running": {"startedAt": render_time(world.now)}}
    running = {"name": "fetch", "restartCount": 0, "state": state}
    world.cluster.put({**pod, "status": {"phase": "Running", "containerStatuses": [running]}})
    await world.settle()
    before = count_writes(world)
    seconds = 20
    for second in range(1, seconds + 1):
        world.now += 1
        world.fetched = {pod["metadata"]["name"]: Fetched(100 * GIB, second * 5 * GIB, GIB)}
        await world.reconcile_until_quiet()
        percents = world.status["model"].get("fetched", "%")
        assert percents == "%" or f"{percents[:-1]} % of" in world.condition("ModelReady")["message"]
    assert 0 < count_writes(world) - before <= seconds / PAUSE_SECONDS + 1, "words alone are new"


async def test_a_container_that_others_added_does_not_keep_the_fetch_from_its_end() -> None:
    world = await make_filling(pod={"annotations": {"mesh": "off"}})
    assert get_filler(world)["spec"]["template"]["metadata"]["annotations"] == {"mesh": "off"}
    status = resolver_status("")
    sidecar = {"name": "istio-proxy", "state": {"running": {"startedAt": render_time(world.now)}}}
    statuses = [*status["containerStatuses"], sidecar]
    world.cluster.put({**get_pod(world), "status": {"phase": "Running", "containerStatuses": statuses}})
    await world.settle()
    assert len(world.pods()) == 2


async def test_one_failed_look_changes_nothing_that_is_known_of_a_claim() -> None:
    world = make_world("ReadWriteOnce")
    await world.settle()
    assert told(world) == ("False", "CacheUnusable")
    for fault in (RefusedError("forbidden"), TransientError("etcd timeout")):
        world.now += LOOK_SECONDS
        world.cluster.read_faults.append(fault)
        await world.settle()
        assert told(world) == ("False", "CacheUnusable")
        assert find_filler(world) is None


async def test_the_claim_of_a_service_that_is_made_anew_is_looked_at_at_once() -> None:
    """Also where nobody looked between the two services. Both are in their first generation."""
    world = await make_filling()
    world.cluster.put(make_service(model=EMPTY_CLAIM, scaling=EXTERNAL, replicas=2))
    await world.settle()
    assert told(world) == ("False", "CacheUnusable")


async def test_an_edit_of_the_engine_fetches_nothing_that_is_there() -> None:
    world = await make_filling()
    world.is_filled = True
    await world.settle()
    before = world.status["currentRevision"]
    world.is_filled = False
    world.edit(engine={"maxSequences": 7})
    await world.settle()
    assert world.status["currentRevision"] != before
    assert told(world, "UpToDate")[0] == "True"


async def test_an_edit_sees_to_a_folder_again_that_no_replica_can_read() -> None:
    world = await make_filling()
    world.is_filled = True
    await world.settle()
    world.edit(replicas=0)
    await world.settle()
    world.is_filled = False
    world.broken[world.status["currentRevision"]] = crash_status("no such folder", code=65)
    world.edit(replicas=2, pod={"annotations": {"anew": "1"}})
    await world.settle()
    assert find_filler(world)


async def test_a_claim_that_is_deleted_is_told_in_some_minutes() -> None:
    world = await make_filling()
    world.is_filled = True
    await world.settle()
    world.cluster.remove(PERSISTENT_VOLUME_CLAIM, KEY.namespace, "models")
    world.now += GOOD_LOOK_SECONDS
    await world.settle()
    assert told(world, "Degraded") == ("True", "CacheUnusable")


async def test_a_fetch_that_fails_is_told_in_its_words_until_it_is_mended() -> None:
    world = await make_filling()
    pod = get_pod(world)
    world.cluster.put({**pod, "status": resolver_status(GATED, code=1)})
    await world.settle()
    assert told(world, "Degraded") == ("True", "FetchFailed")
    assert told(world) == ("False", "FetchFailed")
    assert "acme/chat is gated" in world.condition("ModelReady")["message"]
    world.is_filled = True
    await world.settle()
    assert told(world, "Degraded")[0] == "False"
    assert len(world.pods()) == 2


async def test_a_claim_that_is_absent_is_named_until_it_appears() -> None:
    world = make_world()
    world.is_filled = True
    await world.settle()
    assert told(world) == ("False", "CacheUnusable")
    assert "no PersistentVolumeClaim models in this namespace" in world.condition("Degraded")["message"]
    assert told(world, "Progressing") == ("True", "CacheUnusable")
    assert find_filler(world) is None
    assert (await world.reconcile()).look_again == LOOK_SECONDS

    world.cluster.put(make_claim("ReadWriteMany"))
    await world.settle()
    assert find_filler(world) is None, "not at each look"
    world.now += LOOK_SECONDS
    await world.settle()
    assert told(world, "Degraded")[0] == "False"
    assert len(world.pods()) == 2
    assert (await world.reconcile()).look_again == GOOD_LOOK_SECONDS


@pytest.mark.parametrize("mode", ["ReadWriteOnce", "ReadWriteOncePod"])
async def test_a_claim_of_one_node_is_for_one_replica(mode: str) -> None:
    world = make_world(mode)
    world.is_filled = True
    await world.settle()
    assert told(world) == ("False", "CacheUnusable")
    message = world.condition("ModelReady")["message"]
    assert f"models is {mode}" in message
    assert "spec.replicas is 2" in message
    assert "write spec.replicas: 1" in message
    assert not world.objects("Deployment")
    world.edit(replicas=1)
    await world.settle()
    assert told(world, "Degraded")[0] == "False"
    assert len(world.pods()) == 1

    world.edit(replicas=3)
    await world.settle()
    assert told(world, "Degraded") == ("True", "CacheUnusable"), "also where the model is there"
    assert told(world, "Ready")[0] == "True"


async def test_the_bound_of_an_automatic_count_is_what_counts() -> None:
    world = make_world("ReadWriteOnce", scaling={"minReplicas": 1, "maxReplicas": 4}, replicas=None)
    await world.settle()
    assert "spec.scaling.maxReplicas is 4" in world.condition("ModelReady")["message"]


async def test_a_claim_that_is_only_read_is_refused() -> None:
    world = make_world("ReadOnlyMany")
    await world.settle()
    assert told(world) == ("False", "CacheUnusable")
    assert "write spec.model.uri as pvc://models/folder" in world.condition("ModelReady")["message"]
    assert find_filler(world) is None


async def test_an_operator_that_may_not_read_claims_fetches_all_the_same() -> None:
    world = make_world("ReadWriteOnce")
    world.cluster.read_faults.append(RefusedError("persistentvolumeclaims is forbidden"))
    await world.settle()
    assert told(world) == ("False", "Fetching")
    assert (await world.reconcile()).look_again == BLIND_LOOK_SECONDS
    world.now += BLIND_LOOK_SECONDS
    await world.settle()
    assert told(world) == ("False", "CacheUnusable")
    assert find_filler(world) is None


async def test_what_serves_goes_on_while_the_next_model_is_fetched_and_serves_again() -> None:
    world = await make_filling()
    world.is_filled = True
    await world.settle()
    serving, templates = world.status["currentRevision"], read_templates(world)
    world.model_revision, world.is_filled = SECOND, False
    newer = {**CACHED, "uri": "hf://acme/chat@v2"}
    world.edit(model=newer)
    await world.settle()
    assert world.deployments() == {serving: 2}
    assert read_templates(world) == templates
    assert world.status["model"]["cache"]["path"] == FOLDER
    assert told(world) == ("False", "Fetching")
    world.is_filled = True
    await world.settle()
    assert list(world.deployments()) == [world.status["updateRevision"]] != [serving]
    assert world.status["model"]["cache"]["path"] == name_folder(newer["uri"], SECOND) != FOLDER

    world.edit(model=CACHED)
    await world.settle()
    assert world.deployments() == {serving: 2}
    assert read_templates(world) == templates, "the folder that it was fetched into"
    assert world.status["model"]["cache"]["path"] == FOLDER
    assert not world.objects("Job")


async def test_an_edit_while_it_is_fetched_ends_that_job() -> None:
    world = await make_filling()
    before = get_filler(world)["metadata"]["name"]
    world.edit(model={**CACHED, "uri": "hf://acme/chat@v2"})
    await world.settle()
    assert get_filler(world)["metadata"]["name"] != before
    assert len(world.objects("Job")) == 1


async def test_a_branch_that_moves_on_meanwhile_changes_nothing() -> None:
    world = await make_filling()
    for pod in world.objects("Pod"):
        if pod != get_pod(world):  # its node is gone
            world.cluster.remove(POD, KEY.namespace, pod["metadata"]["name"])
    world.model_revision = SECOND
    world.now += LOST_SECONDS + 1
    world.restart_operator()
    await world.settle()
    world.is_filled = True
    await world.settle()
    assert world.status["model"]["resolvedRevision"] == FIRST
    assert world.status["model"]["cache"]["path"] == FOLDER


async def test_a_job_that_gets_nowhere_is_made_anew_by_an_operator_that_was_mended() -> None:
    world = await make_filling()
    job, pod = get_filler(world), get_pod(world)
    world.settings = replace(world.settings, fetch_image="good.example/fetch:1")
    world.restart_operator()
    await world.settle()
    assert get_filler(world)["metadata"]["uid"] == job["metadata"]["uid"], "it works: it goes on"
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    status = {"phase": "Pending", "containerStatuses": [{"name": "fetch", "restartCount": 0, **waiting}]}
    world.cluster.put({**pod, "status": status})
    await world.settle()
    (container,) = get_filler(world)["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "good.example/fetch:1"
    assert FIRST in container["args"]


async def test_a_job_that_is_deleted_is_made_anew_at_once() -> None:
    world = await make_filling()
    job = get_filler(world)
    world.cluster.remove(JOB, KEY.namespace, job["metadata"]["name"])
    await world.settle()
    assert get_filler(world)["metadata"]["uid"] != job["metadata"]["uid"]


async def test_a_job_that_gave_up_is_made_anew_after_a_while() -> None:
    world = await make_filling()
    job = get_filler(world)
    failed = {"type": "Failed", "status": "True", "lastTransitionTime": render_time(world.now)}
    world.cluster.put({**job, "status": {"conditions": [failed]}})
    await world.settle()
    assert get_filler(world)["metadata"]["uid"] == job["metadata"]["uid"]
    assert (await world.reconcile()).look_again == LOST_SECONDS + 1
    world.now += LOST_SECONDS + 1
    await world.settle()
    assert get_filler(world)["metadata"]["uid"] != job["metadata"]["uid"]
    world.is_filled = True
    await world.settle()
    assert len(world.pods()) == 2


async def test_what_the_job_knows_is_kept_until_it_is_written_down() -> None:
    world = make_world("ReadWriteMany")
    words = "exceeded quota"
    world.cluster.refuse = lambda obj: words if obj["kind"] == "ControllerRevision" else None
    for _ in range(5):
        await world.reconcile()
        world.run_controllers()
    assert len(world.objects("Job")) == 1, "nothing is fetched before it is"
    assert not world.pods()
    world.cluster.refuse = lambda _: None
    world.is_filled = True
    for _ in range(3):
        await world.settle()
    assert not world.objects("Job")
    assert len(world.pods()) == 2


async def test_a_cache_makes_another_revision_and_its_default_does_not() -> None:
    world = World(model=MAIN, scaling=EXTERNAL, replicas=1)
    world.model_revision = FIRST
    await world.settle()
    before = copy.deepcopy(world.deployments())
    world.edit(model={**MAIN, "cache": {"type": "None"}})
    await world.settle()
    assert world.deployments() == before
    world.cluster.put(make_claim("ReadWriteMany"))
    world.edit(model=CACHED)
    await world.settle()
    assert world.deployments().keys() != before.keys()


@pytest.mark.parametrize(
    ("uri", "same", "readable"),
    [
        ("hf://Acme/Chat-8B@main", "hf://Acme/Chat-8B", "hf-acme-chat-8b"),
        ("oci://registry.example:5000/m/chat:v1", "oci://registry.example:5000/m/chat", None),
        ("oci://registry.example/chat@sha256:" + "a" * 64, "oci://registry.example/chat:v2", None),
        ("s3://models/a@b/c/", "s3://models/a@b/c", "s3-models-a-b-c"),
        ("https://host:8443/m/", "https://host:8443/m", "https-host-8443-m"),
    ],
)
def test_a_folder_is_of_a_place_and_a_revision(uri: str, same: str, readable: str | None) -> None:
    folder = name_folder(uri, FIRST)
    assert folder == name_folder(same, FIRST) != name_folder(uri, SECOND)
    top, name = folder.split("/")
    slug, _, digest = name.rpartition("-")
    assert (top, len(digest)) == ("millrace", 16)
    assert readable in (None, slug)


def test_places_that_read_alike_have_folders_of_their_own() -> None:
    uris = ("hf://a/b", "hf://a-b", "s3://a/b", "https://a/b", "http://a/b", "https://a/B", "https://a:1/b")
    assert len({name_folder(uri, FIRST) for uri in uris}) == len(uris)


@pytest.mark.parametrize(
    "uri", ["https://host/../../etc", "s3://b/" + "x/" * 400, "https://h/%2e%2e/é", "hf://"]
)
def test_no_address_leads_out_of_the_folder(uri: str) -> None:
    top, name = name_folder(uri, "sha256:../../x").split("/")
    assert (top, name.strip("abcdefghijklmnopqrstuvwxyz0123456789-")) == ("millrace", "")
    assert len(name) <= 77


def test_the_jobs_name_is_as_long_as_may_be() -> None:
    service = make_service()
    service["metadata"]["name"] = "x" * NAME_MAX_LENGTH
    assert len(fill_name(service, "0123456789")) == 63


async def test_the_pods_are_those_of_the_operator_that_makes_them_and_not_of_the_one_that_asked() -> None:
    world = make_world()
    world.settings = RenderSettings(runtime_image="wrong.example/runtime:1")
    world.restart_operator()
    await world.settle()
    world.settings = RenderSettings(runtime_image="right.example/runtime:2")
    world.restart_operator()
    world.cluster.put(make_claim("ReadWriteMany"))
    world.is_filled = True
    world.now += 60
    await world.settle()
    images = {one["image"] for template in read_templates(world) for one in template["containers"]}
    assert images == {"right.example/runtime:2"}
