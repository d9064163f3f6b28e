"""The resource on a real API server: what it refuses and how it says so, what it explains, what it keeps.

No operator is needed here but for the last part, where one of our own runs against the cluster.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.api_client import RefusedError, create, delete, patch
from e2e.cluster.api_reader import has_condition
from e2e.cluster.errors import PartFailedError
from e2e.cluster.local_cluster import LocalCluster
from e2e.cluster.product import CRD_PATH, IMAGES
from e2e.managed_fields import find_writers
from e2e.namespaces import create_namespace
from e2e.operator_process import OperatorProcess, render_account_kubeconfig
from e2e.plugin import ask_cluster
from millrace_kubectl.key_secret import hash_key, read_client
from millrace_operator.api.conditions import find_condition
from millrace_operator.api.crd import render_crd
from millrace_operator.gateways.key_secret import read_entries
from millrace_runtime.contract import LABEL_API_KEYS
from testing.manifests import read_corpus
from testing.polling import wait_until

ROOT = Path(__file__).resolve().parents[1]
PATIENCE_SECONDS = 60.0
CORPUS = read_corpus()


@pytest.fixture(scope="module")
def cluster(make_state_folder: Callable[[str], Path]) -> Iterator[LocalCluster]:
    """A control plane of this file's own: two operators with different flags would fight over one."""
    local = LocalCluster(make_state_folder("control-plane"), nodes=())
    try:
        local.start()
        yield local
    finally:
        local.stop()


@pytest.fixture(scope="module")
def namespace(cluster: LocalCluster) -> str:
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
    wait_for("the definition", lambda: has_condition(cluster.api.get(CRD_PATH), "Established"))
    create_namespace(cluster, "resource-tests")
    cluster.kubectl("apply", "-f", "-", stdin=render_chart(cluster, "templates/rbac.yaml"))
    return "resource-tests"


def render_chart(cluster: LocalCluster, template: str) -> str:
    helm = cluster.layout.programs / "helm"
    words = [str(helm), "template", "millrace", str(ROOT / "charts" / "millrace"), "-n", "resource-tests"]
    return subprocess.run(
        [*words, *IMAGES, "--show-only", template], check=True, capture_output=True, encoding="utf-8"
    ).stdout


def manifest(name: str = "chat", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": {"model": {"uri": "file:///models/stories"}, **spec},
    }


def apply(cluster: LocalCluster, namespace: str, obj: dict[str, Any], *flags: str) -> str:
    return cluster.kubectl("apply", "-n", namespace, *flags, "-f", "-", stdin=json.dumps(obj))


def find_services(namespace: str) -> str:
    """Return where the API server has a namespace's services."""
    return f"/apis/millrace.dev/v1alpha1/namespaces/{namespace}/inferenceservices"


def try_out(cluster: LocalCluster, namespace: str, obj: dict[str, Any]) -> None:
    """Have the API server look at an object as at one that kubectl applies. Raises RefusedError."""
    create(cluster, f"{find_services(namespace)}?dryRun=All&fieldValidation=Strict", obj)


def scaling(**fields: Any) -> dict[str, Any]:
    return {"scaling": fields}


def objective(**fields: Any) -> dict[str, Any]:
    return {"metric": "TimeToFirstToken", "percentile": 95, "target": "2s", **fields}


GPUS = {"limits": {"nvidia.com/gpu": 2}}
REFUSALS = {
    "an unknown field": (manifest(replicaCount=2), 'unknown field "spec.replicaCount"'),
    "max below min": (
        manifest(**scaling(minReplicas=3, maxReplicas=2)),
        "write maxReplicas at least as large",
    ),
    "a min below zero": (manifest(**scaling(minReplicas=-1)), "should be greater than or equal to 0"),
    "a version in words": (
        manifest(engine={"version": "the newest"}),
        "spec.engine.version in body should match",
    ),
    "a wait of hours": (
        manifest(**scaling(minReplicas=0, activation={"maxWait": "2h"})),
        "write scaling.activation.maxWait up to 1h",
    ),
    "a negative duration": (manifest(rollout={"progressDeadline": "-5m"}), "such as 10m or 1h30m"),
    "a zero duration": (manifest(rollout={"progressDeadline": "0s"}), "such as 10m or 1h30m"),
    "a canary of nobody": (manifest(rollout={"canary": {"replicas": 0}}), "a share from 1% to 100%"),
    "a canary of more than all": (
        manifest(rollout={"canary": {"replicas": "101%"}}),
        "a share from 1% to 100%",
    ),
    "a canary for no time": (manifest(rollout={"canary": {"duration": "0s"}}), "such as 10m or 2h"),
    "a malformed duration": (
        manifest(**scaling(maxReplicas=2, objectives=[objective(target="2 seconds")])),
        "such as 500ms or 2s",
    ),
    "an objective listed twice": (
        manifest(**scaling(objectives=[objective(), objective(target="3s")])),
        "Duplicate value",
    ),
    "a malformed URI": (
        manifest(model={"uri": "models/stories"}),
        "https://host/folder, pvc://claim-name/path or file:///absolute/path",
    ),
    "a password in a URI": (
        manifest(model={"uri": "https://me:secret@host.example/m"}),
        "everybody who may read the service can read them",
    ),
    "a signed URI": (
        manifest(model={"uri": "https://host.example/m?signature=1"}),
        "everybody who may read the service can read them",
    ),
    "a web server without a folder": (manifest(model={"uri": "https://host.example"}), "https://host/folder"),
    "a repository that climbs": (
        manifest(model={"uri": f"hf://acme/..@{'0' * 40}"}),
        "hf://organisation/model@revision",
    ),
    "an s3 URI without a bucket": (manifest(model={"uri": "s3:///folder"}), "s3://bucket/folder"),
    "an oci URI with a password": (
        manifest(model={"uri": "oci://me:secret@registry.example/m"}),
        "oci://registry/repository:tag",
    ),
    "a cache without a claim": (
        manifest(model={"uri": "hf://acme/m", "cache": {"type": "PersistentVolumeClaim"}}),
        "write model.cache.claimName",
    ),
    "a claim without a cache": (
        manifest(model={"uri": "hf://acme/m", "cache": {"claimName": "models"}}),
        "write that type, or leave claimName out",
    ),
    "a claim that is another folder on each node": (
        manifest(
            model={
                "uri": "hf://acme/m",
                "cache": {"type": "PersistentVolumeClaim", "claimName": "millrace-models"},
            }
        ),
        "write model.cache.type NodeLocal without claimName",
    ),
    "a claim beside the nodes' own": (
        manifest(model={"uri": "hf://acme/m", "cache": {"type": "NodeLocal", "claimName": "models"}}),
        "leave claimName out",
    ),
    "nodes that keep what is at hand": (
        manifest(model={"uri": "file:///m", "cache": {"type": "NodeLocal"}}),
        "leave model.cache out",
    ),
    "a cache for what is at hand": (
        manifest(
            model={"uri": "pvc://m/m", "cache": {"type": "PersistentVolumeClaim", "claimName": "models"}}
        ),
        "leave model.cache out",
    ),
    "credentials for what is not fetched": (
        manifest(model={"uri": "file:///m", "credentials": {"secretName": "hub"}}),
        "leave them out",
    ),
    "credentials for what anybody on the way can read": (
        manifest(model={"uri": "http://models.example/m", "credentials": {"secretName": "hub"}}),
        "leave them out",
    ),
    "a URI that climbs": (manifest(model={"uri": "file:///models/../etc"}), "without '..'"),
    "a dotted name": (manifest("chat.v1"), "without dots"),
    "a long name": (manifest("x" * 51), "at most 50"),
    "replicas in Automatic": (
        manifest(replicas=2),
        "write scaling.minReplicas and scaling.maxReplicas instead",
    ),
    "a label of ours": (
        manifest(pod={"labels": {"millrace.dev/service": "x"}}),
        "write another key in spec.pod.labels",
    ),
    "a claim from nowhere": (
        manifest(pod={"resourceClaims": [{"name": "gpu"}]}),
        "write one of resourceClaimName",
    ),
    "a claim from two places": (
        manifest(
            pod={
                "resourceClaims": [
                    {"name": "gpu", "resourceClaimName": "a", "resourceClaimTemplateName": "b"}
                ]
            }
        ),
        "write one of resourceClaimName",
    ),
    "a spread of nothing": (
        manifest(pod={"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone"}]}),
        "whenUnsatisfiable: Required value",
    ),
    "fewest parts that nobody waits for": (
        manifest(
            pod={
                "topologySpreadConstraints": [
                    {
                        "maxSkew": 1,
                        "topologyKey": "zone",
                        "whenUnsatisfiable": "ScheduleAnyway",
                        "minDomains": 2,
                    }
                ]
            }
        ),
        "minDomains is for whenUnsatisfiable DoNotSchedule",
    ),
    "no time to leave": (
        manifest(pod={"terminationGracePeriodSeconds": 0}),
        "should be greater than or equal to 10",
    ),
    "a price in words": (
        manifest(resources=GPUS, cost={"acceleratorHour": "2,50"}),
        'write cost.acceleratorHour as decimal text, such as "2.50"',
    ),
    "a price of no accelerator": (
        manifest(resources={"limits": {"cpu": 2}}, cost={"acceleratorHour": "2.50"}),
        "without one, or with several, write cost.resourceHours",
    ),
    "a price of two accelerators": (
        manifest(
            resources={"limits": {"nvidia.com/gpu": 1, "rdma/hca": 1}}, cost={"acceleratorHour": "2.50"}
        ),
        "without one, or with several, write cost.resourceHours",
    ),
    "a negative price of a CPU": (
        manifest(cost={"resourceHours": {"cpu": "-1"}}),
        "write each price of cost.resourceHours as decimal text",
    ),
    "a currency in words": (
        manifest(resources=GPUS, cost={"acceleratorHour": "2.50", "currency": "usd"}),
        "write cost.currency as three capital letters, such as EUR",
    ),
    "more workers than GPUs": (
        manifest(resources=GPUS, parallelism={"tensor": 4}),
        "write parallelism.tensor as the number of GPUs in resources.limits",
    ),
    "fewer workers than GPUs": (
        manifest(resources={"limits": {"nvidia.com/gpu": "2"}}, parallelism={"tensor": 1}),
        "write parallelism.tensor as the number of GPUs in resources.limits",
    ),
    "a currency without a price": (manifest(cost={"currency": "EUR"}), "write a price beside the currency"),
    "a Secret of keys that nobody needs": (
        manifest(access={"authentication": {"mode": "None", "secretName": "chat-keys"}}),
        "access.authentication.secretName is read with mode APIKey alone",
    ),
    "a limit per key without keys": (
        manifest(access={"rateLimits": [{"per": "Key", "concurrency": 4}]}),
        "write access.authentication: {mode: APIKey}, or per: Service",
    ),
    "a limit of nothing": (
        manifest(access={"rateLimits": [{"per": "Service"}]}),
        "at least one of requestsPerMinute, tokensPerMinute and concurrency",
    ),
    "a limit of zero": (
        manifest(access={"rateLimits": [{"per": "Service", "concurrency": 0}]}),
        "should be greater than or equal to 1",
    ),
    "too many limits": (
        manifest(access={"rateLimits": 9 * [{"per": "Service", "concurrency": 1}]}),
        "must have at most 8 items",
    ),
    "an unknown mode": (
        manifest(**scaling(mode="Manual")),
        'supported values: "Automatic", "External", "DryRun"',
    ),
}


@pytest.mark.parametrize(("obj", "words"), REFUSALS.values(), ids=REFUSALS)
def test_the_api_server_refuses_and_says_what_to_write(
    cluster: LocalCluster, namespace: str, obj: dict[str, Any], words: str
) -> None:
    with pytest.raises(RefusedError) as caught:
        try_out(cluster, namespace, obj)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", CORPUS)
def test_the_api_server_takes_what_it_took(cluster: LocalCluster, namespace: str, name: str) -> None:
    try_out(cluster, namespace, CORPUS[name])


def test_the_api_server_takes_a_service_that_may_rest(cluster: LocalCluster, namespace: str) -> None:
    for fields in ({}, {"scaleToZeroAfter": "5m", "activation": {"maxWait": "90s"}}):
        try_out(cluster, namespace, manifest("resting", **scaling(minReplicas=0, **fields)))


def test_the_api_server_takes_prices(cluster: LocalCluster, namespace: str) -> None:
    both = {"acceleratorHour": "2.50", "resourceHours": {"cpu": "0.04"}, "currency": "EUR"}
    for cost in ({"acceleratorHour": "2.50"}, {"resourceHours": {"cpu": "0.04"}}, both):
        try_out(cluster, namespace, manifest("priced", resources=GPUS, cost=cost))


def test_explain_reads_well(cluster: LocalCluster, namespace: str) -> None:  # noqa: ARG001  the CRD is its work
    for _ in range(20):  # the API server publishes a new CRD's schema a moment later
        try:
            text = cluster.kubectl("explain", "infsvc.spec.scaling")
            break
        except PartFailedError:
            time.sleep(1)
    for word in (
        "maxReplicas",
        "objectives",
        "kubectl scale, an HPA or KEDA",
        "enum: Automatic, External, DryRun",
    ):
        assert word in " ".join(text.split()), text


def test_a_second_apply_says_unchanged(cluster: LocalCluster, namespace: str) -> None:
    example = yaml.safe_load((ROOT / "examples" / "stories.yaml").read_text())
    assert "created" in apply(cluster, namespace, example)
    assert "unchanged" in apply(cluster, namespace, example)


def test_scaling_by_hand_is_for_mode_external(cluster: LocalCluster, namespace: str) -> None:
    apply(cluster, namespace, manifest("modes"))
    with pytest.raises(PartFailedError, match="External for kubectl scale") as caught:
        cluster.kubectl("scale", "-n", namespace, "infsvc/modes", "--replicas=3")
    assert "spec.replicas: Forbidden" in str(caught.value)
    apply(cluster, namespace, manifest("modes", replicas=1, **scaling(mode="External")))
    cluster.kubectl("scale", "-n", namespace, "infsvc/modes", "--replicas=3")
    assert read_scale(cluster, namespace, "modes")["spec"]["replicas"] == 3


def test_switching_modes_back_and_forth_never_wedges(cluster: LocalCluster, namespace: str) -> None:
    name, external = "switch", scaling(mode="External")
    path = f"{find_services(namespace)}/{name}"
    apply(cluster, namespace, manifest(name))
    for count in (2, 4):
        apply(cluster, namespace, manifest(name, replicas=count, **external))
        # With the count left over, as a merge patch leaves it, and then without.
        patch(cluster, path, {"spec": {"scaling": {"mode": "Automatic"}}})
        for label in (f"r{count}", None):
            patch(cluster, path, {"metadata": {"labels": {"round": label}}})
        apply(cluster, namespace, manifest(name))
    assert "replicas" not in read(cluster, namespace, name)["spec"]


def read(cluster: LocalCluster, namespace: str, name: str) -> dict[str, Any]:
    return cluster.api.get(f"{find_services(namespace)}/{name}")


def read_scale(cluster: LocalCluster, namespace: str, name: str) -> dict[str, Any]:
    return cluster.api.get(f"{find_services(namespace)}/{name}/scale")


def test_keys_are_made_listed_and_revoked_by_a_real_kubectl(cluster: LocalCluster, namespace: str) -> None:
    ask = partial(ask_cluster, cluster, namespace, "key")
    keys = [ask("create", "clients", "ann", "--concurrency", "4").strip() for _ in range(2)]
    path = f"/api/v1/namespaces/{namespace}/secrets/clients"
    secret = cluster.api.get(path)
    assert secret["metadata"]["labels"] == {LABEL_API_KEYS: "true"}
    found = read_client("ann", secret["data"]["ann"])
    assert found.hashes == tuple(map(hash_key, keys))
    assert "clients  ann     2     all     4 at once" in ask("list")
    ask("revoke", "clients", "ann", "--old")
    assert read_client("ann", cluster.api.get(path)["data"]["ann"]).hashes == (hash_key(keys[1]),)
    ask("revoke", "clients", "ann")
    assert not cluster.api.get(path).get("data")
    assert "no client has a key" in ask("list")


class Operators:
    """Operators that lead one after the other, with no more rights than the chart gives them."""

    def __init__(self, cluster: LocalCluster, namespace: str, folder: Path) -> None:
        self._kubeconfig = render_account_kubeconfig(cluster, namespace)
        self._namespace = namespace
        self._folder = folder
        self._num_started = 0
        self._running: OperatorProcess | None = None

    def lead(self) -> OperatorProcess:
        """Return the one that leads, started unless it runs."""
        if self._running is None:
            self._num_started += 1
            log = self._folder / f"operator-{self._num_started}.log"
            self._running = OperatorProcess(self._kubeconfig, self._namespace, log).wait_leading()
        return self._running

    def stop(self) -> None:
        """End the one that leads. It has never failed in a way that nobody foresaw."""
        running, self._running = self._running, None
        if running is not None:
            with running:
                running.stop()
            assert "Traceback" not in running.text


@pytest.fixture(scope="module")
def operators(
    cluster: LocalCluster, namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operators]:
    found = Operators(cluster, namespace, tmp_path_factory.mktemp("operators"))
    yield found
    found.stop()


@pytest.fixture
def operator(operators: Operators) -> OperatorProcess:
    return operators.lead()


def wait_for(what: str, ask: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> Any:
    """Wait as `wait_until` does, also for what is not there yet."""
    return wait_until(what, ask, seconds, outlives=(PartFailedError,))


CHILDREN = {
    "deployments": "/apis/apps/v1",
    "controllerrevisions": "/apis/apps/v1",
    "poddisruptionbudgets": "/apis/policy/v1",
    "serviceaccounts": "/api/v1",
    "services": "/api/v1",
}
"""Where the API server has what the operator makes."""


def path_of_child(namespace: str, collection: str, name: str = "") -> str:
    return f"{CHILDREN[collection]}/namespaces/{namespace}/{collection}" + (f"/{name}" if name else "")


def list_children(
    cluster: LocalCluster, namespace: str, name: str, *collections: str
) -> list[dict[str, Any]]:
    """Return a service's children of some kinds."""
    paths = [path_of_child(namespace, collection) for collection in collections]
    return [found for path in paths for found in cluster.api.list(path, f"millrace.dev/service={name}")]


def find_deployment(cluster: LocalCluster, namespace: str, name: str) -> dict[str, Any] | None:
    """Return the Deployment of a service; None while there is none."""
    found = list_children(cluster, namespace, name, "deployments")
    return found[0] if found else None


def test_a_service_whose_clients_need_keys_gets_the_gateways_public_key(
    cluster: LocalCluster,
    namespace: str,
    operator: OperatorProcess,  # noqa: ARG001
) -> None:
    """The operator makes the Secret with the rights that the chart gives it, and may read no other."""
    access = {"authentication": {"mode": "APIKey", "secretName": "closed-keys"}}
    apply(cluster, namespace, manifest("closed", access=access))
    made = wait_for("its Deployment", lambda: find_deployment(cluster, namespace, "closed"))
    words = made["spec"]["template"]["spec"]["containers"][0]["args"]
    secret = cluster.api.get(f"/api/v1/namespaces/{namespace}/secrets/millrace-gateway-key")
    (public,) = read_entries(secret).values()
    assert f"--gateway-key={public}" in words
    assert words[words.index("--service") + 1] == f"{namespace}/closed"
    told = find_condition(read(cluster, namespace, "closed")["status"], "AccessReady")
    assert told is not None
    assert told["reason"] == "KeysReadable"


def test_a_reconcile_leaves_the_manifest_as_it_is(
    cluster: LocalCluster,
    namespace: str,
    operator: OperatorProcess,  # noqa: ARG001
) -> None:
    obj = manifest("kept", resources={"limits": {"cpu": "1000m"}}, replicas=2, **scaling(mode="External"))
    apply(cluster, namespace, obj, "--server-side")
    wait_for(
        "two replicas in status",
        lambda: read(cluster, namespace, "kept").get("status", {}).get("replicas") == 2,
    )
    before = read(cluster, namespace, "kept")
    assert before["status"]["observedGeneration"] == before["metadata"]["generation"] == 1
    dry = apply(cluster, namespace, obj, "--server-side", "--dry-run=server", "-o", "json")
    assert json.loads(dry)["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    cluster.kubectl("diff", "-n", namespace, "--server-side", "-f", "-", stdin=json.dumps(obj))
    scale = read_scale(cluster, namespace, "kept")
    assert scale["status"]["selector"] == "millrace.dev/service=kept,millrace.dev/component=replica"
    assert scale["status"]["replicas"] == 2


PLACEMENT: dict[str, Any] = {
    "nodeSelector": {"gpu": "a"},
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "runtimeClassName": "nvidia",
    "imagePullSecrets": [{"name": "registry"}],
    "serviceAccountName": "reads-buckets",
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "minDomains": 2,
        },
        {"maxSkew": 2, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"},
    ],
    "resourceClaims": [
        {"name": "gpu", "resourceClaimTemplateName": "one-gpu", "request": "gpu"},
        {"name": "nic", "resourceClaimName": "shared"},
    ],
    "terminationGracePeriodSeconds": 120,
}


def test_every_field_of_placement_reaches_the_pods_as_the_api_server_has_it(
    cluster: LocalCluster, namespace: str, operator: OperatorProcess
) -> None:
    apply(cluster, namespace, manifest("placed", pod=PLACEMENT))
    deployment = wait_for("its Deployment", lambda: find_deployment(cluster, namespace, "placed"))
    found = deployment["spec"]["template"]["spec"]
    claims, spreads = found["resourceClaims"], found["topologySpreadConstraints"]
    container = found["containers"][0]
    assert [claim["name"] for claim in claims] == ["gpu", "nic"]
    assert container["resources"]["claims"] == [{"name": "gpu", "request": "gpu"}, {"name": "nic"}]
    assert [spread["labelSelector"]["matchLabels"]["millrace.dev/service"] for spread in spreads] == [
        "placed", "placed",
    ]  # fmt: skip
    for asked, got in zip(PLACEMENT["topologySpreadConstraints"], spreads, strict=True):
        assert asked.items() <= got.items()
    for field in (
        "nodeSelector",
        "tolerations",
        "runtimeClassName",
        "imagePullSecrets",
        "serviceAccountName",
    ):
        assert found[field] == PLACEMENT[field]
    assert found["terminationGracePeriodSeconds"] == 120
    assert container["args"][-2:] == ["--drain-seconds", "90"]
    assert found["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
    time.sleep(5)
    writes = re.findall(rf" apply .*Deployment {deployment['metadata']['name']}\b", operator.log.read_text())
    assert len(writes) == 1, "what the API server makes of it is what we want"


def test_the_list_shows_what_people_ask_for(
    cluster: LocalCluster,
    namespace: str,
    operator: OperatorProcess,  # noqa: ARG001
) -> None:
    apply(cluster, namespace, manifest("listed"))
    wait_for("a status", lambda: read(cluster, namespace, "listed").get("status"))
    header, row = cluster.kubectl("get", "infsvc", "listed", "-n", namespace).splitlines()
    columns = ["NAME", "MODEL", "READY", "STATE", "FETCHED", "REPLICAS", "DESIRED", "URL", "AGE"]
    assert header.split() == columns
    assert row.split()[1:3] == ["listed", "False"]
    assert f"http://listed.{namespace}.svc.cluster.local:8080" in row
    everything = cluster.kubectl("get", "all", "-n", namespace, "-o", "name")
    assert "inferenceservice.millrace.dev/listed" in everything.splitlines()


def test_a_child_deleted_by_hand_is_back_and_a_restart_writes_nothing(
    cluster: LocalCluster, namespace: str, operators: Operators
) -> None:
    operators.lead()
    apply(cluster, namespace, manifest("drift"))
    made = wait_for("its Deployment", lambda: find_deployment(cluster, namespace, "drift"))
    deployment = path_of_child(namespace, "deployments", made["metadata"]["name"])
    for child in (
        deployment,
        path_of_child(namespace, "services", "drift"),
        path_of_child(namespace, "services", "drift-replicas"),
        path_of_child(namespace, "poddisruptionbudgets", "drift"),
        path_of_child(namespace, "serviceaccounts", "drift-replica"),
    ):
        delete(cluster, child)
        wait_for("the child is back", partial(cluster.api.get, child), 5)
    uid = made["metadata"]["uid"]
    wait_for("another Deployment of the name", lambda: cluster.api.get(deployment)["metadata"]["uid"] != uid)
    patch(cluster, f"{deployment}/scale", {"spec": {"replicas": 0}})
    wait_for("its count is mended", lambda: cluster.api.get(deployment)["spec"]["replicas"] == 1, 5)
    time.sleep(3)
    operators.stop()
    before = versions(cluster, namespace)
    operators.lead()
    time.sleep(4)
    assert versions(cluster, namespace) == before


@contextlib.contextmanager
def older_definition(cluster: LocalCluster, namespace: str, example: dict[str, Any]) -> Iterator[None]:
    """Serve a definition whose model has one field more, until the end of the block."""
    older = render_crd()
    schema = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["properties"]["model"]["properties"]["follow"] = {"type": "string"}
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(older))
    try:
        wait_for("the older definition", lambda: is_taken(cluster, namespace, example))
        yield
    finally:
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
        wait_for("the shipped definition", lambda: not is_taken(cluster, namespace, example))


def is_taken(cluster: LocalCluster, namespace: str, obj: dict[str, Any]) -> bool:
    try:
        try_out(cluster, namespace, obj)
    except RefusedError:
        return False
    return True


def test_a_field_that_a_version_removed_is_named_until_the_manifest_drops_it(
    cluster: LocalCluster, namespace: str, operators: Operators
) -> None:
    operators.stop()
    ways = {"by-kubectl": (), "by-flux": ("--server-side",)}
    model = {"uri": "file:///models/stories"}
    older = {name: manifest(name, model={**model, "follow": "Branch"}) for name in ways}
    with older_definition(cluster, namespace, older["by-flux"]):
        for name, flags in ways.items():
            apply(cluster, namespace, older[name], *flags)
    # The API server reads by the shipped definition a moment after it writes by it.
    wait_for("pruned", lambda: all(read(cluster, namespace, name)["spec"]["model"] == model for name in ways))
    operators.lead()
    wait_for("Events", lambda: all(count_removals(cluster, namespace, name) for name in ways))
    words = "spec.model.follow is not in this version's schema and has no effect; remove it from the manifest"
    assert {find_removal(cluster, namespace, name) for name in ways} == {words}
    operators.stop()
    operators.lead()  # which repeats no Event
    for name, flags in ways.items():
        apply(cluster, namespace, manifest(name, model=model), *flags)
    wait_for("their ends", lambda: not any(find_removal(cluster, namespace, name) for name in ways))
    assert [count_removals(cluster, namespace, name) for name in ways] == [1, 1]


def count_removals(cluster: LocalCluster, namespace: str, name: str) -> int:
    """Return how often Events have said which fields of a service went."""
    events = cluster.api.list(f"/api/v1/namespaces/{namespace}/events")
    own = (one for one in events if one["involvedObject"]["name"] == name)
    return sum(one["count"] for one in own if one["reason"] == "FieldsRemoved")


def find_removal(cluster: LocalCluster, namespace: str, name: str) -> str:
    condition = find_condition(read(cluster, namespace, name).get("status", {}), "SpecCurrent")
    return condition["message"] if condition else ""


def versions(cluster: LocalCluster, namespace: str) -> dict[str, str]:
    kinds = "infsvc,deployment,service,serviceaccount,pdb,controllerrevision"
    items = json.loads(cluster.kubectl("get", kinds, "-n", namespace, "-o", "json"))["items"]
    return {f"{i['kind']}/{i['metadata']['name']}": i["metadata"]["resourceVersion"] for i in items}


def test_a_foreign_service_is_left_alone(
    cluster: LocalCluster,
    namespace: str,
    operator: OperatorProcess,  # noqa: ARG001
) -> None:
    cluster.kubectl("create", "service", "clusterip", "taken", "--tcp=80:80", "-n", namespace)
    before = cluster.kubectl("get", "service", "taken", "-n", namespace, "-o", "yaml")
    apply(cluster, namespace, manifest("taken"))
    ready = wait_for("a Ready condition", lambda: condition(cluster, namespace, "taken", "Ready"))
    wait_for("Conflict", lambda: "Conflict" in str(condition(cluster, namespace, "taken", "Ready")))
    assert ready["status"] == "False"
    assert cluster.kubectl("get", "service", "taken", "-n", namespace, "-o", "yaml") == before


def condition(cluster: LocalCluster, namespace: str, name: str, kind: str) -> dict[str, Any] | None:
    conditions = read(cluster, namespace, name).get("status", {}).get("conditions", [])
    return next((c for c in conditions if c["type"] == kind), None)


def render_autoscaler(kind: str, name: str, api_version: str) -> dict[str, Any]:
    """Return one that needs no metrics: fewer than its least are raised to that."""
    target = {"type": "Utilization", "averageUtilization": 80}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "raiser"},
        "spec": {
            "scaleTargetRef": {"apiVersion": api_version, "kind": kind, "name": name},
            "minReplicas": 3,
            "maxReplicas": 5,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
        },
    }


def test_a_real_autoscaler_scales_a_service_in_mode_external(
    cluster: LocalCluster,
    namespace: str,
    operator: OperatorProcess,  # noqa: ARG001
) -> None:
    apply(cluster, namespace, manifest("raised", replicas=1, **scaling(mode="External", maxReplicas=5)))
    autoscaler = render_autoscaler("InferenceService", "raised", "millrace.dev/v1alpha1")
    apply(cluster, namespace, autoscaler)
    wait_for("its Deployment has three", lambda: count_replicas(cluster, namespace, "raised") == 3, 120)
    cluster.kubectl("scale", "infsvc/raised", "--replicas=1", "-n", namespace)
    wait_for("it has one", lambda: count_replicas(cluster, namespace, "raised") == 1)
    wait_for("it has three again", lambda: count_replicas(cluster, namespace, "raised") == 3)
    found = read(cluster, namespace, "raised")
    assert find_writers(found, "replicas") == {"kube-controller-manager"}
    assert found["spec"]["replicas"] == 3
    cluster.kubectl("delete", "hpa", "raiser", "-n", namespace)


def count_replicas(cluster: LocalCluster, namespace: str, name: str) -> int:
    deployment = find_deployment(cluster, namespace, name)
    return int(deployment["spec"]["replicas"]) if deployment else 0


def test_a_real_autoscaler_of_a_deployment_of_ours_is_named(
    cluster: LocalCluster,
    namespace: str,
    operator: OperatorProcess,  # noqa: ARG001
) -> None:
    apply(cluster, namespace, manifest("contested"))
    deployment = wait_for("its Deployment", lambda: find_deployment(cluster, namespace, "contested"))
    apply(cluster, namespace, render_autoscaler("Deployment", deployment["metadata"]["name"], "apps/v1"))
    told = wait_for("it is told", lambda: find_contest(cluster, namespace, "contested"))
    assert "HorizontalPodAutoscaler raiser scales Deployment contested-" in told
    cluster.kubectl("delete", "hpa", "raiser", "-n", namespace)
    wait_for("it is over", lambda: not find_contest(cluster, namespace, "contested"), 90)


def test_deletion_returns_without_an_operator_and_takes_every_child(
    cluster: LocalCluster, namespace: str, operators: Operators
) -> None:
    operators.lead()
    apply(cluster, namespace, manifest("gone"))
    wait_for("its Deployment", lambda: find_deployment(cluster, namespace, "gone"))
    operators.stop()
    cluster.kubectl("delete", "infsvc", "gone", "-n", namespace, "--timeout=10s")
    wait_for("no child is left", lambda: not list_children(cluster, namespace, "gone", *CHILDREN), 120)


def find_contest(cluster: LocalCluster, namespace: str, name: str) -> str:
    conditions = read(cluster, namespace, name).get("status", {}).get("conditions", [])
    told = [one["message"] for one in conditions if one["reason"] == "Contested"]
    return told[0] if told else ""


def test_kubectl_completes_the_plugins_command_lines(
    cluster: LocalCluster, namespace: str, tmp_path: Path
) -> None:
    for program, module in (("kubectl-millrace", "command"), ("kubectl_complete-millrace", "completion")):
        file = tmp_path / program
        script = f"from millrace_kubectl.{module} import main; main()"
        file.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{script}" "$@"\n')
        file.chmod(0o755)
    apply(cluster, namespace, manifest("completed"))
    assert "explain\twhy a service has its count" in complete(cluster, tmp_path, "ex")
    assert complete(cluster, tmp_path, "status", "-n", namespace, "compl").splitlines()[0] == "completed"


def complete(cluster: LocalCluster, folder: Path, *words: str) -> str:
    """Return the suggestions for the shell, from a kubectl that finds the plugin in a folder."""
    kubectl = cluster.layout.programs / "kubectl"
    environment = {
        **os.environ,
        "PATH": f"{folder}:{cluster.layout.programs}:{os.environ['PATH']}",
        "KUBECONFIG": str(cluster.kubeconfig),
    }
    command = [str(kubectl), "__complete", "millrace", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
