import pytest

from millrace_gateway.route.objects import ServiceKey, read_replica, read_service, trim_replica, trim_service
from tests.gateway.conftest import make_pod, make_service


def test_a_service_without_a_served_name_is_served_under_its_own() -> None:
    assert read_service(make_service("a", "chat")).served_name == "chat"
    assert read_service(make_service("a", "chat", served="llama")).served_name == "llama"


def test_a_service_tells_why_it_is_not_ready() -> None:
    waiting = {"status": "False", "reason": "ModelLoading", "message": "pod chat-0 loads"}
    assert read_service(make_service("a", "chat", ready=waiting)).state == "ModelLoading"
    assert read_service(make_service("a", "chat", ready=waiting | {"status": "True"})).state == ""
    assert read_service(make_service("a", "chat")).state == ""


def test_a_bare_object_is_read() -> None:
    service = read_service({"metadata": {"namespace": "a", "name": "b"}})
    assert (service.key, service.served_name, service.created) == (ServiceKey("a", "b"), "b", "")


def test_a_replica_is_ready_only_with_condition_address_and_future() -> None:
    pod = make_pod("a", "chat", "p1")
    assert read_replica(pod).is_ready
    assert not read_replica(make_pod("a", "chat", "p1", ready=False)).is_ready
    assert not read_replica(make_pod("a", "chat", "p1", address="")).is_ready
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert not read_replica(pod).is_ready
    assert not read_replica(pod | {"status": None}).is_ready


def test_a_pod_of_no_service_is_no_replica() -> None:
    pod = make_pod("a", "chat", "p1")
    pod["metadata"]["labels"] = None
    assert read_replica(pod) is None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ()),
        (["--gateway-key", "a", "--served-name", "m", "--gateway-key", "b"], ("a", "b")),
        (["--gateway-key=a", "--gateway-key"], ("a",)),
    ],
)
def test_a_replicas_keys_are_those_of_its_flags(arguments: list[str], expected: tuple[str, ...]) -> None:
    pod = make_pod("a", "chat", "p1")
    pod["spec"]["containers"] = [
        {"name": "proxy", "args": ["--gateway-key", "x"]},
        {"name": "replica", "args": arguments},
    ]
    assert read_replica(pod).gateway_keys == expected


def test_a_trimmed_object_reads_as_the_whole_one() -> None:
    pod = make_pod("a", "chat", "p1", served="m")
    pod["metadata"] |= {"annotations": {"x": "y", "millrace.dev/leaving": "now"}, "managedFields": [{"x": 1}]}
    pod["spec"] |= {"volumes": [{"name": "models"}]}
    pod["status"]["conditions"].insert(0, {"type": "Initialized", "status": "True"})
    service = make_service("a", "chat", served="m", ready={"status": "False", "reason": "ModelLoading"})
    service["spec"] |= {"access": {"authentication": {"mode": "APIKey"}}, "scaling": {"minReplicas": 0}}
    for item in (pod, {"metadata": pod["metadata"]}):
        assert read_replica(trim_replica(item)) == read_replica(item)
    for item in (service, {"metadata": service["metadata"]}, service | {"spec": {"model": "x"}}):
        assert read_service(trim_service(item)) == read_service(item)
    assert "managedFields" not in str(trim_replica(pod))
    assert read_service(service).access == {"authentication": {"mode": "APIKey"}}
    assert read_service(service | {"spec": {"access": "x"}}).access is None
