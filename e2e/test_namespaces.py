"""Millrace for some namespaces alone: with Roles in these, and no right anywhere else."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

import pytest
import yaml

from e2e.api_client import delete
from e2e.cluster.api_reader import find_condition, has_condition
from e2e.cluster.errors import PartFailedError
from e2e.cluster.local_cluster import LocalCluster
from e2e.cluster.product import CRD_PATH, IMAGES
from e2e.namespaces import create_namespace, path_of
from e2e.operator_process import OperatorProcess, find_free_port, render_account_kubeconfig
from testing.polling import wait_until

ROOT = Path(__file__).resolve().parents[1]
RELEASE = "scoped-release"
OURS = ("team-a", "team-b")
OTHER = "team-c"
LATE = "team-d"
GATEWAY = "import sys; from millrace_gateway.command import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture(scope="module")
def cluster(make_state_folder: Callable[[str], Path]) -> Iterator[LocalCluster]:
    """A control plane of this file's own: the session's has a release that looks after every namespace."""
    local = LocalCluster(make_state_folder("namespaces"), nodes=())
    try:
        local.start()
        local.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
        wait_until(
            "the definition",
            lambda: has_condition(local.api.get(CRD_PATH), "Established"),
            60,
            outlives=(PartFailedError,),
        )
        for namespace in (RELEASE, *OURS, OTHER, LATE):
            create_namespace(local, namespace)
        local.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(render_chart(local)))
        yield local
    finally:
        local.stop()


def render_chart(cluster: LocalCluster, *namespaces: str) -> list[dict[str, Any]]:
    """Return the RBAC of a release for some namespaces."""
    helm = cluster.layout.programs / "helm"
    chosen = f"namespaces={{{','.join(namespaces or OURS)}}}"
    words = [
        str(helm),
        "template",
        "millrace",
        str(ROOT / "charts" / "millrace"),
        "-n",
        RELEASE,
        "--set",
        chosen,
        *IMAGES,
    ]
    text = subprocess.run(
        [*words, "--show-only", "templates/rbac.yaml"], check=True, capture_output=True, text=True
    ).stdout
    return [obj for obj in yaml.safe_load_all(text) if obj]


def apply(cluster: LocalCluster, namespace: str) -> None:
    service = {
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "chat", "namespace": namespace},
        "spec": {"model": {"uri": "file:///models/stories"}},
    }
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(service))


def is_shadowed(cluster: LocalCluster, namespace: str) -> bool:
    path = f"/apis/millrace.dev/v1alpha1/namespaces/{namespace}/inferenceservices/chat"
    return find_condition(cluster.api.get(path), "AccessReady").get("reason") == "NameShadowed"


def list_deployments(cluster: LocalCluster, namespace: str) -> list[dict[str, Any]]:
    return cluster.api.list(f"/apis/apps/v1/namespaces/{namespace}/deployments", "millrace.dev/service=chat")


def test_the_chart_asks_for_no_right_in_the_whole_cluster(cluster: LocalCluster) -> None:
    kinds = {obj["kind"] for obj in render_chart(cluster)}
    assert kinds == {"ServiceAccount", "Role", "RoleBinding"}


def test_services_of_these_namespaces_are_looked_after_and_no_others(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    account = render_account_kubeconfig(cluster, RELEASE)
    flags = ("--namespaces", ",".join(OURS))
    with OperatorProcess(account, RELEASE, tmp_path / "operator.log", flags=flags) as operator:
        operator.wait_leading()
        for namespace in (*OURS, OTHER):
            apply(cluster, namespace)
        for namespace in OURS:
            wait_until("its Deployment", partial(list_deployments, cluster, namespace))
            wait_until("told that it shares its name", partial(is_shadowed, cluster, namespace))
        child = f"{path_of(OURS[0])}/services/chat"
        delete(cluster, child)
        wait_until("the child is back", lambda: cluster.api.get(child), outlives=(PartFailedError,))
        assert not list_deployments(cluster, OTHER)
        operator.stop()
    for word in ("forbidden", "Traceback"):
        assert word not in operator.text


def test_a_namespace_without_a_role_keeps_no_other_waiting(cluster: LocalCluster, tmp_path: Path) -> None:
    """As where one is deleted, or its Role comes later."""
    flags = ("--namespaces", f"{OURS[0]},{LATE},absent")
    account = render_account_kubeconfig(cluster, RELEASE)
    apply(cluster, LATE)
    with OperatorProcess(account, RELEASE, tmp_path / "late.log", identity="late", flags=flags) as operator:
        operator.wait_leading()
        apply(cluster, OURS[0])
        wait_until("its Deployment", partial(list_deployments, cluster, OURS[0]))
        cluster.kubectl("delete", "deploy", "--all", "-n", OURS[0])
        wait_until("it is back", partial(list_deployments, cluster, OURS[0]))
        assert not list_deployments(cluster, LATE)
        roles = [obj for obj in render_chart(cluster, OURS[0], LATE) if obj["metadata"]["namespace"] == LATE]
        cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(roles))
        wait_until("the other one's", partial(list_deployments, cluster, LATE), 60)
        operator.stop()
    assert "Traceback" not in operator.text


def test_the_gateway_knows_the_services_of_these_namespaces_and_no_others(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    for namespace in (*OURS, OTHER):
        apply(cluster, namespace)
    kubeconfig, port = tmp_path / "gateway.kubeconfig", find_free_port()
    kubeconfig.write_text(render_account_kubeconfig(cluster, RELEASE, "millrace-gateway"))
    flags = ["--host", "127.0.0.1", "--port", str(port), "--metrics-port", "0"]
    flags += ["--namespaces", ",".join((*OURS, "absent")), "--list-all-models"]
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    with subprocess.Popen([sys.executable, "-c", GATEWAY, *flags], env=environment) as gateway:
        try:
            wait_until("it is ready", lambda: ask(port, "/readyz"), outlives=(URLError, OSError))
            models = json.loads(ask(port, "/v1/models"))["data"]
            assert {model["id"] for model in models} == {f"{namespace}/chat" for namespace in OURS}
        finally:
            gateway.terminate()


def ask(port: int, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            text: str = answer.read().decode()
            return text
    except HTTPError as refusal:
        refusal.close()  # or a later test is told of its socket
        raise
