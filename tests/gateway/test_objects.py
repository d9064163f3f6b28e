from millrace_gateway.route.objects import ServiceKey, read_replica, read_service
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
