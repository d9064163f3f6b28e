"""Pods that a process node refuses by the names of their fields, and those that it takes."""

from typing import Any

import pytest

from e2e.cluster.nodes.admission import check_pod
from e2e.cluster.nodes.errors import PodRefusedError
from millrace_operator.api.types import Spec
from millrace_operator.render.pod_template import render_pod_template
from millrace_operator.render.settings import RenderSettings
from testing.world import make_service

Object = dict[str, Any]


def pod(container: Object | None = None, **spec: Any) -> Object:
    return {"spec": {"containers": [{"name": "main", "image": "shell:1", **(container or {})}], **spec}}


def mount(**fields: Any) -> Object:
    return {"volumeMounts": [{"name": "data", "mountPath": "/data", **fields}]}


def refusal(wanted: Object) -> str:
    with pytest.raises(PodRefusedError) as caught:
        check_pod(wanted)
    return str(caught.value).removeprefix("this node cannot give: ")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hostUsers", False),
        ("resourceClaims", [{"name": "gpu", "resourceClaimName": "gpu"}]),
        ("resources", {"limits": {"cpu": "1"}}),
        ("runtimeClassName", "gvisor"),
        ("setHostnameAsFQDN", True),
        ("subdomain", "peers"),
    ],
)
def test_a_pods_field_is_refused_by_name(field: str, value: object) -> None:
    assert refusal(pod(**{field: value})) == field


def test_a_pods_kernel_settings_are_refused() -> None:
    context = {"sysctls": [{"name": "net.core.somaxconn", "value": "1"}]}
    assert refusal(pod(securityContext=context)) == "securityContext.sysctls"


@pytest.mark.parametrize(
    ("container", "problem"),
    [
        ({"lifecycle": {"stopSignal": "SIGUSR1"}}, "lifecycle.stopSignal"),
        ({"securityContext": {"procMount": "Unmasked"}}, "securityContext.procMount"),
        (mount(mountPropagation="HostToContainer"), "/data: mountPropagation"),
        (mount(recursiveReadOnly="Enabled"), "/data: recursiveReadOnly"),
        (mount(subPath="a"), "/data: subPath"),
    ],
)
def test_a_containers_field_is_refused_by_name(container: Object, problem: str) -> None:
    assert refusal(pod(container)) == f"containers[main].{problem}"


@pytest.mark.parametrize(
    "harmless",
    [
        pod(hostUsers=True, setHostnameAsFQDN=False, hostNetwork=False),
        pod({"securityContext": {"procMount": "Default"}}),
        pod(mount(mountPropagation="None", recursiveReadOnly="Disabled")),
        pod({"resources": {"limits": {"ephemeral-storage": "1Gi"}}}),
        pod(volumes=[{"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}]),
    ],
)
def test_what_is_as_a_node_has_it_or_without_effect_is_taken(harmless: Object) -> None:
    check_pod(harmless)


@pytest.mark.parametrize("uri", ["file:///models/stories", "pvc://weights/llama/8b"])
def test_a_replicas_pod_is_taken(uri: str) -> None:
    service = make_service(model={"uri": uri})
    service["metadata"]["uid"] = "u"
    settings = RenderSettings(gateway_port=8080)
    check_pod(render_pod_template(settings, service, Spec.model_validate(service["spec"]), "r1"))
