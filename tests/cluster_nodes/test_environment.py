from typing import Any

import pytest

from e2e.cluster.nodes.environment import (
    Facts,
    build_environment,
    expand,
    field_value,
    service_variables,
)
from e2e.cluster.nodes.errors import PodRefusedError
from e2e.cluster.nodes.network.endpoints import Endpoint
from e2e.cluster.nodes.quantities import parse_quantity

POD: dict[str, Any] = {
    "metadata": {"name": "p", "namespace": "prod", "uid": "u", "labels": {"b": "2", "a/x": "1"}},
    "spec": {"nodeName": "n", "containers": []},
}
FACTS = Facts(POD, "127.16.0.1", "127.0.0.2", {"c": {"k": "v"}}, {"s": {"k": "hidden"}})


def env(container: dict[str, Any]) -> dict[str, str]:
    return build_environment(
        container, FACTS, {"IMAGE": "1", "PATH": "/opt/bin"}, {"S_SERVICE_HOST": "h"}, "/venv/bin"
    )


def test_later_sources_win_and_references_expand() -> None:
    container = {
        "envFrom": [
            {"prefix": "C_", "configMapRef": {"name": "c"}},
            {"secretRef": {"name": "none", "optional": True}},
        ],
        "env": [
            {"name": "IMAGE", "value": "2"},
            {"name": "X", "value": "$(IMAGE)-$(C_k)-$(ABSENT)-$$(IMAGE)"},
            {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            {"name": "NO", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "no", "optional": True}}},
        ],
    }
    found = env(container)
    assert found["X"] == "2-v-$(ABSENT)-$(IMAGE)"
    assert found["KEY"] == "hidden"
    assert "NO" not in found
    assert found["PATH"] == "/venv/bin:/opt/bin"
    assert found["MILLRACE_BIND_ADDRESS"] == "127.16.0.1"
    assert found["S_SERVICE_HOST"] == "h"
    assert not found.keys() & {"SSH_AUTH_SOCK", "USER", "PYTHONPATH"}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            {"valueFrom": {"configMapKeyRef": {"name": "c", "key": "no"}}},
            "configMap 'c' with key 'no' not found",
        ),
        ({"valueFrom": {"fieldRef": {"fieldPath": "spec.priority"}}}, "no downward API field"),
    ],
)
def test_what_has_no_value_is_refused(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(PodRefusedError, match=message) as caught:
        env({"env": [{"name": "X", **entry}]})
    assert caught.value.reason == "CreateContainerConfigError"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "p"),
        ("metadata.labels['a/x']", "1"),
        ("metadata.labels", 'a/x="1"\nb="2"'),
        ("status.podIP", "127.16.0.1"),
        ("status.hostIP", "127.0.0.2"),
        ("spec.nodeName", "n"),
    ],
)
def test_downward_fields(path: str, value: str) -> None:
    assert field_value(path, FACTS) == value


def test_service_variables_are_those_of_the_namespace() -> None:
    ports = [{"name": "http-api", "port": 8080}]
    services: list[dict[str, Any]] = [
        {
            "metadata": {"name": "my-gw", "namespace": "prod"},
            "spec": {"clusterIP": "127.96.0.4", "ports": ports},
        },
        {
            "metadata": {"name": "away", "namespace": "other"},
            "spec": {"clusterIP": "127.96.0.5", "ports": ports},
        },
        {
            "metadata": {"name": "headless", "namespace": "prod"},
            "spec": {"clusterIP": "None", "ports": ports},
        },
    ]
    found = service_variables(services, "prod", Endpoint("127.0.0.1", 6443))
    assert found["MY_GW_SERVICE_HOST"] == "127.96.0.4"
    assert found["MY_GW_SERVICE_PORT_HTTP_API"] == "8080"
    assert found["MY_GW_PORT"] == "tcp://127.96.0.4:8080"
    assert (found["KUBERNETES_SERVICE_HOST"], found["KUBERNETES_SERVICE_PORT"]) == ("127.0.0.1", "6443")
    assert not any(key.startswith(("AWAY", "HEADLESS")) for key in found)


def test_expand_leaves_the_unknown() -> None:
    assert expand("$(A) $(B) $$(A) $A", {"A": "1"}) == "1 $(B) $(A) $A"


def test_quantities() -> None:
    assert [parse_quantity(text) for text in ("500m", "2", "16Gi", "1k", "0.5")] == [0.5, 2, 2**34, 1000, 0.5]
    with pytest.raises(ValueError, match="write one such as 500m"):
        parse_quantity("lots")
