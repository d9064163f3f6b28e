"""What several gateways tell, put together."""

import pytest

from millrace_operator.gateways.loads import Loads, MalformedLineError
from millrace_operator.gateways.objects import GatewaySink
from millrace_operator.reconcile.snapshot import Demand, PodLoad

NOW = 1_800_000_000.0


def test_the_gateways_requests_add_up_and_change() -> None:
    loads = Loads()
    loads.expect(["one", "two"])
    loads.note("one", {"in_flight": {"a": 2, "b": 1}, "leaving": ["a"]}, NOW)
    loads.note("two", {"in_flight": {"a": 3}, "leaving": []}, NOW)
    assert loads.read("abc") == {"a": PodLoad(5, False), "b": PodLoad(1, False), "c": PodLoad(0, False)}
    loads.note("one", {"in_flight": {"a": 0}}, NOW)
    loads.note("two", {"in_flight": {"a": 0}, "leaving": ["a"]}, NOW)
    assert loads.read("ab") == {"a": PodLoad(0, True), "b": PodLoad(1, False)}


def test_nothing_is_known_while_one_of_them_does_not_tell() -> None:
    loads = Loads()
    assert loads.read("a") == {}
    loads.expect(["one", "two"])
    loads.note("one", {"in_flight": {}, "leaving": ["a"]}, NOW)
    assert loads.read("a") == {}
    loads.note("two", {"in_flight": {"a": 1}, "leaving": ["a"]}, NOW)
    assert loads.read("a") == {"a": PodLoad(1, True)}
    loads.lose("two")
    assert loads.read("a") == {}
    loads.expect(["one"])  # it is gone, and its requests with it
    assert loads.read("a") == {"a": PodLoad(0, True)}


def test_a_stream_that_begins_anew_knows_nothing_of_the_former_one() -> None:
    loads = Loads()
    loads.expect(["one"])
    loads.note("one", {"in_flight": {"a": 1}, "leaving": ["a"]}, NOW)
    loads.lose("one")
    loads.note("one", {"in_flight": {}, "leaving": []}, NOW)
    assert loads.read("a") == {"a": PodLoad(0, False)}


@pytest.mark.parametrize("line", [[], None, 3, {"in_flight": []}, {"in_flight": {"a": None}}, {"leaving": 1}])
def test_a_line_that_cannot_be_read_changes_nothing(line: object) -> None:
    loads = Loads()
    loads.expect(["one"])
    loads.note("one", {"in_flight": {"a": 1}, "leaving": ["a"]}, NOW)
    with pytest.raises(MalformedLineError):
        loads.note("one", line, NOW)
    assert loads.read("a") == {"a": PodLoad(1, True)}


def gateway(
    uid: str, *, ready: bool = True, address: str = "10.0.0.1", going: bool = False
) -> dict[str, object]:
    return {
        "metadata": {"uid": uid} | ({"deletionTimestamp": "2026-01-01T00:00:00Z"} if going else {}),
        "spec": {"containers": [{"ports": [{"name": "http", "containerPort": 8081}]}]},
        "status": {
            "podIP": address,
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def test_gateways_count_from_ready_until_they_are_gone() -> None:
    sink = GatewaySink()
    sink.replace([gateway("a"), gateway("b", ready=False), gateway("c", address="")], "1")
    assert sink.urls == {"a": "http://10.0.0.1:8081/loads"}
    sink.apply(gateway("b", address="fd00::2"))
    sink.apply(gateway("a", ready=False, going=True))
    assert sink.urls == {"a": "http://10.0.0.1:8081/loads", "b": "http://[fd00::2]:8081/loads"}
    sink.delete(gateway("a"))
    sink.apply(gateway("b", ready=False))
    assert sink.urls == {}


def test_a_service_is_idle_since_the_last_request_at_any_gateway() -> None:
    loads = Loads()
    assert loads.read_demand("shop/chat") == Demand(0, None)
    loads.expect(["one", "two"])
    assert loads.note("one", {"known": 50.0, "open": {"shop/chat": 2}}, NOW) == ["shop/chat"]
    assert loads.read_demand("shop/chat") == Demand(2, None)  # known before the other one tells
    assert loads.note("one", {"open": {"shop/chat": 0}, "ended": {"shop/chat": 3.0}}, NOW + 10.0) == []
    assert loads.read_demand("shop/chat") == Demand(0, None)
    loads.note("two", {"known": 20.0}, NOW)
    assert loads.read_demand("shop/chat") == Demand(0, NOW + 7.0)
    assert loads.read_demand("shop/other") == Demand(0, NOW - 20.0)
    loads.lose("one")
    assert loads.read_demand("shop/chat") == Demand(0, None)
