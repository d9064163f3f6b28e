"""What several gateways tell, put together."""

import pytest

from millrace_operator.api.conditions import parse_time
from millrace_operator.gateways.loads import WAITING_SECONDS, Loads, MalformedLineError
from millrace_operator.gateways.streams import GatewaySink
from millrace_operator.observed.snapshot import Demand, PodLoad

NOW = 1_800_000_000.0


def test_the_gateways_requests_add_up_and_change() -> None:
    loads = Loads()
    loads.expect(["one", "two"], NOW)
    loads.note("one", {"in_flight": {"a": 2, "b": 1}, "leaving": ["a"]}, NOW)
    loads.note("two", {"in_flight": {"a": 3}, "leaving": []}, NOW)
    assert loads.read("abc") == {"a": PodLoad(5, False), "b": PodLoad(1, False), "c": PodLoad(0, False)}
    loads.note("one", {"in_flight": {"a": 0}}, NOW)
    loads.note("two", {"in_flight": {"a": 0}, "leaving": ["a"]}, NOW)
    assert loads.read("ab") == {"a": PodLoad(0, True), "b": PodLoad(1, False)}


def test_a_line_in_which_nothing_changed_copies_nothing() -> None:
    loads = Loads()
    loads.expect(["one"], NOW)
    loads.note("one", {"in_flight": {"a": 2}, "ready": {"a": 1}, "open": {"shop/chat": 2}}, NOW)
    before = loads._reports["one"]
    loads.note("one", {}, NOW)
    after = loads._reports["one"]
    pairs = zip(
        (before.in_flight, before.ready, before.num_open),
        (after.in_flight, after.ready, after.num_open),
        strict=True,
    )
    assert all(one is other for one, other in pairs)


def test_while_one_does_not_tell_what_the_others_have_is_known_and_since_when_it_is_not_all() -> None:
    loads = Loads()
    loads.begin(NOW)
    assert loads.read("a") == {"a": PodLoad(0, False, NOW)}
    loads.expect(["one", "two"], NOW + 1)
    loads.note("one", {"in_flight": {"a": 2}, "leaving": ["a"]}, NOW + 2)
    assert loads.read("a") == {"a": PodLoad(2, False, NOW)}
    loads.note("two", {"in_flight": {"a": 1}, "leaving": ["a"]}, NOW + 3)
    assert loads.read("a") == {"a": PodLoad(3, True)}
    loads.lose("two", NOW + 60)
    assert loads.read("a") == {"a": PodLoad(2, False, NOW + 60)}
    assert (loads.num_expected, loads.num_silent) == (2, 1)
    loads.expect(["one", "two"], NOW + 61)
    assert loads.read("a") == {"a": PodLoad(2, False, NOW + 60)}
    loads.expect(["one"], NOW + 62)  # it is gone, and its requests with it
    assert loads.read("a") == {"a": PodLoad(2, True)}


def test_a_new_leader_begins_with_nothing() -> None:
    loads = Loads()
    loads.expect(["one"], NOW)
    loads.note("one", {"in_flight": {}, "leaving": ["a"]}, NOW)
    loads.begin(NOW + 10)  # another one leads
    loads.begin(NOW + 500)
    loads.expect(["one"], NOW + 501)
    assert loads.read("a") == {"a": PodLoad(0, False, NOW + 500)}


def test_a_stream_that_begins_anew_knows_nothing_of_the_former_one() -> None:
    loads = Loads()
    loads.expect(["one"], NOW)
    loads.note("one", {"in_flight": {"a": 1}, "leaving": ["a"]}, NOW)
    loads.lose("one", NOW)
    loads.note("one", {"in_flight": {}, "leaving": []}, NOW)
    assert loads.read("a") == {"a": PodLoad(0, False)}


@pytest.mark.parametrize(
    "line",
    [
        [],
        None,
        3,
        {"in_flight": []},
        {"in_flight": {"a": None}},
        {"leaving": 1},
        {"open": {"a": float("inf")}},
    ],
)
def test_a_line_that_cannot_be_read_changes_nothing(line: object) -> None:
    loads = Loads()
    loads.expect(["one"], NOW)
    loads.note("one", {"in_flight": {"a": 1}, "leaving": ["a"]}, NOW)
    with pytest.raises(MalformedLineError):
        loads.note("one", line, NOW)
    assert loads.read("a") == {"a": PodLoad(1, True)}


ENDS = "2026-01-01T00:10:30Z"
LATE = parse_time("2026-01-01T00:11:01Z") or 0.0


def gateway(
    uid: str, *, ready: bool = True, address: str = "10.0.0.1", since: str = "", going: bool = False
) -> dict[str, object]:
    """One whose container began at 00:00:01, and is as it is `since`."""
    running = {"state": {"running": {"startedAt": "2026-01-01T00:00:01Z"}}}
    condition = {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": since}
    return {
        "metadata": {"uid": uid} | ({"deletionTimestamp": ENDS} if going else {}),
        "spec": {
            "containers": [
                {
                    "name": "gateway",
                    "ports": [
                        {"name": "http", "containerPort": 8080},
                        {"name": "metrics", "containerPort": 8081},
                    ],
                }
            ]
        },
        "status": {
            "podIP": address,
            "phase": "Running",
            "conditions": [condition],
            "containerStatuses": [{"name": "gateway", **running}],
        },
    }


def test_gateways_count_from_ready_until_they_are_gone() -> None:
    sink = GatewaySink()
    young = gateway("b", ready=False, since="2026-01-01T00:00:00Z")
    sink.replace([gateway("a"), young, gateway("c", address="")], "1")
    assert sink.list_urls(NOW) == {"a": "http://10.0.0.1:8081/loads"}
    sink.apply(gateway("b", address="fd00::2"))
    assert sink.list_urls(NOW) == {"a": "http://10.0.0.1:8081/loads", "b": "http://[fd00::2]:8081/loads"}
    sink.delete(gateway("a"))
    assert list(sink.list_urls(NOW)) == ["b"]


def test_a_gateway_that_is_ready_no_longer_may_have_requests_still() -> None:
    sink = GatewaySink()
    sink.apply(gateway("a", ready=False, since="2026-01-01T00:05:00Z"))
    assert list(sink.list_urls(NOW)) == ["a"]
    ended = gateway("a", ready=False, since="2026-01-01T00:05:00Z")
    young = {"name": "mesh", "state": {"running": {"startedAt": "2026-01-01T00:09:00Z"}}}
    ended["status"]["containerStatuses"].append(young)  # type: ignore[index]
    sink.apply(ended)
    assert list(sink.list_urls(NOW)) == ["a"]
    waiting = {"name": "gateway", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    ended["status"] |= {"containerStatuses": [waiting]}  # type: ignore[operator]
    sink.apply(ended)
    assert sink.list_urls(NOW) == {}


def test_a_gateway_on_a_lost_node_is_not_waited_for_for_ever() -> None:
    sink = GatewaySink()
    sink.apply(gateway("a", ready=False, since="2026-01-01T00:00:00Z", going=True))
    assert list(sink.list_urls(LATE - 2.0)) == ["a"]
    assert sink.list_urls(LATE) == {}


def test_a_pod_is_routable_when_every_gateway_that_says_so_knows_it() -> None:
    loads = Loads()
    loads.expect(["one", "two", "older"], NOW)
    loads.note("older", {}, NOW)
    loads.note("one", {"ready": {"a": 1, "b": 1}}, NOW)
    assert loads.read("a")["a"].is_routable  # nobody knows better
    loads.note("two", {"ready": {}}, NOW)
    assert not loads.read("a")["a"].is_routable
    loads.note("two", {"ready": {"a": 1}}, NOW)
    assert {uid: load.is_routable for uid, load in loads.read("ab").items()} == {"a": True, "b": False}
    loads.note("one", {"ready": {"a": 0}}, NOW)
    assert not loads.read("a")["a"].is_routable


def test_a_service_is_idle_since_the_last_request_at_any_gateway() -> None:
    loads = Loads()
    assert loads.read_demand("shop/chat") == Demand(0, None)
    loads.expect(["one", "two"], NOW)
    assert loads.note("one", {"known": 50.0, "open": {"shop/chat": 2}}, NOW) == ["shop/chat"]
    assert loads.read_demand("shop/chat") == Demand(2, None)  # known before the other one tells
    loads.note("one", {"open": {"shop/chat": 0}, "ended": {"shop/chat": 3.0}}, NOW + 10.0)
    assert loads.read_demand("shop/chat") == Demand(0, None, NOW + 7.0)
    loads.note("two", {"known": 20.0}, NOW)
    assert loads.read_demand("shop/chat") == Demand(0, NOW + 7.0, NOW + 7.0)
    assert loads.read_demand("shop/other") == Demand(0, NOW - 20.0)
    loads.lose("one", NOW)
    assert loads.read_demand("shop/chat") == Demand(0, None, NOW + 7.0)


def test_the_last_request_of_a_gateway_that_is_gone_still_counts() -> None:
    loads = Loads()
    loads.expect(["one", "two"], NOW)
    loads.note("one", {"known": 5e5, "ended": {"shop/chat": 1.0}}, NOW)
    loads.note("two", {"known": 5e5, "ended": {"shop/chat": 36_000.0}}, NOW)
    loads.expect(["two"], NOW)
    assert loads.read_demand("shop/chat") == Demand(0, NOW - 1.0, NOW - 1.0)
    loads.keep(["shop/other"])
    assert loads.read_demand("shop/chat").last_end is None


def test_requests_that_are_open_at_a_gateway_that_goes_end_with_it() -> None:
    """It was killed, say: its stream ends first, and then its pod is not one any more."""
    loads = Loads()
    loads.expect(["one", "two"], NOW)
    loads.note("one", {"known": 5e5, "open": {"shop/chat": 1}, "ended": {"shop/chat": 700.0}}, NOW)
    loads.note("two", {"known": 5e5}, NOW)
    loads.lose("one", NOW + 1.0)
    loads.expect(["two"], NOW + 2.0)
    assert loads.read_demand("shop/chat") == Demand(0, NOW + 2.0, NOW + 2.0)
    assert loads.read_demand("shop/other") == Demand(0, NOW - 5e5)
    loads.expect(["two"], NOW + 60.0)
    assert loads.read_demand("shop/chat").idle_since == NOW + 2.0


def test_a_stream_that_was_cut_ends_no_request_of_its_gateway() -> None:
    loads = Loads()
    loads.expect(["one", "two"], NOW)
    loads.note("two", {"known": 5e5}, NOW)
    loads.note("one", {"known": 5e5, "open": {"shop/chat": 1}}, NOW)
    loads.lose("one", NOW + 1.0)
    loads.note("one", {"known": 5e5, "ended": {"shop/chat": 0.5}}, NOW + 2.0)
    loads.expect(["two"], NOW + 60.0)
    assert loads.read_demand("shop/chat").idle_since == NOW + 1.5


def test_a_gateway_that_goes_before_it_told_may_have_had_requests_of_any_service() -> None:
    """A new leader has not heard it: it hung, say, with streams that it had for long."""
    loads = Loads()
    loads.expect(["one", "two"], NOW)
    loads.note("two", {"known": 5e5}, NOW)
    loads.expect(["two"], NOW + 2.0)
    assert loads.read_demand("shop/chat") == Demand(0, NOW + 2.0)


def test_a_request_that_was_refused_at_once_is_told_too() -> None:
    loads = Loads()
    loads.expect(["one"], NOW)
    loads.note("one", {"known": 5.0}, NOW)
    assert loads.note("one", {"ended": {"shop/chat": 0.1}}, NOW) == ["shop/chat"]
    assert loads.read_demand("shop/chat").last_end == NOW - 0.1


def test_what_waits_is_the_sum_of_the_last_reports() -> None:
    loads = Loads()
    loads.begin(NOW)
    loads.expect(["one", "two"], NOW)
    first: dict[str, object] = {"known": 9.0, "leaving": []}
    assert loads.count_waiting("shop/chat", NOW) == 0
    loads.note("one", {**first, "waiting": {"shop/chat": 5, "shop/other": 1}}, NOW)
    loads.note("two", {**first, "waiting": {"shop/chat": 7}}, NOW)
    assert loads.count_waiting("shop/chat", NOW) == 12
    loads.note("one", {"waiting": {"shop/chat": 0}}, NOW)
    loads.note("two", {}, NOW)
    assert loads.count_waiting("shop/chat", NOW) == 7
    loads.lose("two", NOW)
    assert loads.count_waiting("shop/chat", NOW + WAITING_SECONDS) == 7  # they may still be there
    assert loads.count_waiting("shop/chat", NOW + WAITING_SECONDS + 1) == 0  # their clients have left it
    loads.expect(["one"], NOW)
    assert loads.count_waiting("shop/chat", NOW) == 0


def told(loads: Loads, gateway: str, count: int, at: float, known: float | None = None) -> None:
    """Take in a gateway's count; `known` is its age where this is a first line."""
    first = {} if known is None else {"known": known, "leaving": []}
    loads.note(gateway, {**first, "arrived": {"shop/chat": count}}, at)


def test_arrivals_are_the_rise_of_all_gateways_counts_over_a_window() -> None:
    loads = Loads()
    loads.begin(NOW)
    loads.expect(["one", "two"], NOW)
    told(loads, "one", 1000, NOW, known=9000.0)  # what it had before this leadership is not known
    told(loads, "two", 0, NOW, known=9000.0)
    for second in range(1, 31):
        told(loads, "one", 1000 + 3 * second, NOW + second)
        told(loads, "two", 2 * second, NOW + second)
    assert loads.read_arrivals("shop/chat", 20.0, NOW + 30) == pytest.approx(5.0, rel=0.1)
    assert loads.read_arrivals("shop/other", 20.0, NOW + 30) == 0.0
    assert loads.read_arrivals("shop/chat", 60.0, NOW + 30) is None  # it leads for half a minute
    assert loads.read_arrivals("shop/chat", 20.0, NOW + 60) == 0.0


def test_a_gateway_that_is_lost_for_a_while_tells_what_came_meanwhile() -> None:
    loads = Loads()
    loads.begin(NOW)
    loads.expect(["one"], NOW)
    told(loads, "one", 0, NOW, known=50.0)
    loads.lose("one", NOW + 10)
    assert loads.read_arrivals("shop/chat", 10.0, NOW + 14) == 0.0
    assert loads.read_arrivals("shop/chat", 10.0, NOW + 16) is None
    told(loads, "one", 120, NOW + 60, known=110.0)
    assert loads.read_arrivals("shop/chat", 20.0, NOW + 60) == pytest.approx(2.0, rel=0.1)


def test_a_gateway_that_began_during_this_leadership_counts_from_its_beginning() -> None:
    loads = Loads()
    loads.begin(NOW)
    loads.expect(["one"], NOW)
    told(loads, "one", 500, NOW + 1, known=9000.0)
    loads.expect(["one", "two"], NOW + 40)
    told(loads, "two", 40, NOW + 50, known=10.0)
    told(loads, "two", 6, NOW + 55, known=2.0)  # its container was restarted
    assert loads.read_arrivals("shop/chat", 20.0, NOW + 55) == pytest.approx(46 / 20, rel=0.1)


def test_what_an_older_gateway_got_before_it_told_is_not_taken_for_nothing() -> None:
    loads = Loads()
    loads.begin(NOW)
    loads.expect(["one", "two"], NOW)
    for second in range(120):
        told(loads, "one", 10 * second, NOW + second, known=9000.0 if second == 0 else None)
        if second >= 70:
            told(loads, "two", 10 * second, NOW + second, known=9000.0 if second == 70 else None)
    assert loads.read_arrivals("shop/chat", 60.0, NOW + 119) is None
    assert loads.read_arrivals("shop/chat", 40.0, NOW + 119) == pytest.approx(20.0, rel=0.1)
