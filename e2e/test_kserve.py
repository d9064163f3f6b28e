"""KServe's InferenceServices beside ours, with the same kind and plural: neither is taken for the other."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from e2e.cluster.errors import PartFailedError
from e2e.cluster.local_cluster import LocalCluster
from e2e.plugin import ask
from e2e.service import Service
from testing.polling import wait_until
from testing.traffic import ask_for_token

GROUP = "serving.kserve.io"
DEFINITION = f"inferenceservices.{GROUP}"


@pytest.fixture
def kserve(cluster: LocalCluster) -> Iterator[None]:
    """KServe's definition, as far as another operator can distinguish it from ours."""
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(render_definition()))
    established = ("wait", "--for=condition=Established", f"crd/{DEFINITION}")
    wait_until("its definition", partial(cluster.kubectl, *established), outlives=(PartFailedError,))
    # kubectl learns of a new kind from the API server's discovery, which follows a moment later.
    wait_until(
        "its kind", lambda: cluster.kubectl("get", DEFINITION, "-A") == "", outlives=(PartFailedError,)
    )
    yield
    cluster.kubectl("delete", "crd", DEFINITION)


def render_definition() -> dict[str, Any]:
    kind = "InferenceService"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1beta1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": kind, "plural": "inferenceservices", "singular": kind.lower(), "shortNames": ["isvc"]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": DEFINITION},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {**names, "listKind": f"{kind}List"},
            "versions": [{**version, "subresources": {"status": {}}}],
        },
    }


def render_theirs(name: str) -> dict[str, Any]:
    model = {"modelFormat": {"name": "sklearn"}, "storageUri": "gs://models/iris"}
    return {
        "apiVersion": f"{GROUP}/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": {"predictor": {"model": model}},
    }


@pytest.mark.usefixtures("kserve")
def test_a_service_of_kserves_of_the_same_name_changes_nothing_of_ours(service: Service) -> None:
    service.kubectl("apply", "-f", "-", stdin=json.dumps(render_theirs(service.name)))
    theirs = read_theirs(service)
    service.spec["resources"]["limits"]["cpu"] = "2"
    service.apply()
    service.wait_ready()
    ask_for_token(service.target())

    service.spec["scaling"]["maxReplicas"] = 3
    service.apply()
    service.wait_ready()
    ask_for_token(service.target())

    header, row = service.kubectl("get", "infsvc").splitlines()
    assert header.split()[:5] == ["NAME", "MODEL", "READY", "STATE", "FETCHED"]
    assert row.split()[:3] == [service.name, "stories", "True"]
    assert f"{service.name}.{service.namespace}.svc" in service.kubectl("get", "infsvc")
    told = ask(service, "status")
    assert "stories" in told
    assert "sklearn" not in told
    assert read_theirs(service) == theirs
    short = service.kubectl("get", "isvc", "-o", "name").split()
    assert short == [f"inferenceservice.{GROUP}/{service.name}"]

    service.delete()
    assert read_theirs(service) == theirs


def read_theirs(service: Service) -> dict[str, Any]:
    path = f"/apis/{GROUP}/v1beta1/namespaces/{service.namespace}/inferenceservices/{service.name}"
    return service.cluster.api.get(path)
