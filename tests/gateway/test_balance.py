from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_gateway.route.balance import Balancer
from millrace_gateway.route.load_report import LoadReport, read_load_document, read_load_header
from millrace_gateway.route.objects import Replica
from millrace_gateway.route.preference import Candidate
from millrace_gateway.route.standing import LEAST_SHARE
from millrace_runtime.contract import SLOW_START_SECONDS
from testing.gateway_bench import build_replicas, counted

REPLICAS = build_replicas(3)


def test_the_least_loaded_is_picked() -> None:
    balancer = Balancer(2.0)
    with counted(balancer, REPLICAS[0]):
        with counted(balancer, REPLICAS[2]):
            assert balancer.pick(REPLICAS, (), 0.0) == REPLICAS[1]
        with counted(balancer, REPLICAS[1]), counted(balancer, REPLICAS[1]):
            assert balancer.pick(REPLICAS, (), 0.0) == REPLICAS[2]


def test_a_request_that_fails_is_counted_off() -> None:
    balancer = Balancer(2.0)
    with pytest.raises(ConnectionError), counted(balancer, REPLICAS[0]):
        raise ConnectionError
    assert balancer.count_sequences(REPLICAS[0]) == 0


def test_ties_go_round() -> None:
    balancer = Balancer(2.0)
    picked = [balancer.pick(REPLICAS, (), 0.0) for _ in range(6)]
    assert picked[:3] == picked[3:]
    assert set(picked) == set(REPLICAS)


def test_none_is_left_when_all_were_tried_or_none_is_there() -> None:
    balancer = Balancer(2.0)
    assert balancer.pick((), (), 0.0) is None
    assert balancer.pick(REPLICAS, {"p0", "p1", "p2"}, 0.0) is None
    assert balancer.pick(REPLICAS, {"p0", "p2"}, 0.0) == REPLICAS[1]


def test_a_replicas_own_report_counts_with_what_was_sent_since_until_it_is_old() -> None:
    balancer, (busy, idle, third) = Balancer(2.0), REPLICAS
    balancer.note_load(busy.uid, LoadReport(2, 3, 8, 0.5, 10.0))
    assert {balancer.pick(REPLICAS, (), 10.0) for _ in range(6)} == {idle, third}
    with ExitStack() as held:
        assert set(send(balancer, held, [busy, idle], [11.0] * 5)) == {idle.uid}
        assert sorted(send(balancer, held, [busy, idle], [11.0] * 4)) == ["p0", "p0", "p1", "p1"]
        assert send(balancer, held, [busy, idle], [12.0]) == [busy.uid]  # 2 of its own against 7
        balancer.note_load(busy.uid, LoadReport(0, 0, 8, 0.0, 12.0))
        assert balancer.count_sequences(busy) == 3  # the larger one counts
        assert send(balancer, held, [busy, idle], [12.0] * 4) == [busy.uid] * 4


def test_a_policy_may_choose_among_those_that_are_trusted() -> None:
    balancer, offered = Balancer(2.0), []

    def prefer(candidates: Sequence[Candidate]) -> str | None:
        offered.append({one.replica.uid: (one.num_own, one.share, one.report) for one in candidates})
        return wish

    replicas = [*REPLICAS, replace(REPLICAS[0], uid="p3", is_leaving=True)]
    report = LoadReport(1, 1, 8, 0.5, 100.0)
    balancer.note_load("p1", report)
    balancer.note_failure(REPLICAS[2], 100.0, is_refusal=True)
    wish: str | None = "p1"
    assert balancer.pick(replicas, (), 100.0, prefer) == REPLICAS[1]
    assert offered.pop() == {"p0": (0, 1.0, None), "p1": (0, 1.0, report)}
    for other in (None, "p2", "unknown"):
        wish = other
        assert balancer.pick(replicas, (), 101.0, prefer) == REPLICAS[0]
    assert balancer.pick(replicas, ("p0", "p1"), 101.0, prefer) == REPLICAS[2]


def test_loads_are_read_where_this_gateway_has_requests_and_no_report_is_new() -> None:
    balancer = Balancer(2.0)
    with counted(balancer, REPLICAS[0]), counted(balancer, REPLICAS[1]):
        balancer.note_load("p1", LoadReport(0, 1, 8, 0.1, 9.8))
        assert balancer.polls_due(10.0) == [REPLICAS[0]]
        assert balancer.polls_due(10.2) == []
        assert balancer.polls_due(10.4) == [REPLICAS[1]]
        assert balancer.polls_due(10.5) == [REPLICAS[0]]
    assert balancer.polls_due(20.0) == []


def send(balancer: Balancer, held: ExitStack, replicas: list[Replica], times: list[float]) -> list[str]:
    """Send a request at each time, which all stay in flight; return who got them."""
    picked = []
    for now in times:
        replica = balancer.pick(replicas, (), now)
        assert replica is not None
        held.enter_context(counted(balancer, replica))
        picked.append(replica.uid)
    return picked


def test_a_new_replica_gets_a_share_that_grows_and_no_rush() -> None:
    balancer, begin = Balancer(2.0), 1000.0
    with ExitStack() as held:
        send(balancer, held, list(REPLICAS[:2]), [begin] * 100)
        new = replace(REPLICAS[2], ready_at=begin)
        replicas = [*REPLICAS[:2], new]
        times = [begin + 0.1 * i for i in range(50)]
        share = send(balancer, held, replicas, times).count(new.uid)
        assert 5 <= share <= 1 + 75 * 5 / SLOW_START_SECONDS
        later = send(balancer, held, replicas, [begin + SLOW_START_SECONDS] * 20)
        assert later == [new.uid] * 20


def test_a_new_replica_of_an_idle_service_does_not_go_first_but_takes_part() -> None:
    balancer = Balancer(2.0)
    replicas = [*REPLICAS[:2], replace(REPLICAS[2], ready_at=1000.0)]
    assert {balancer.pick(replicas, (), 1010.0).uid for _ in range(10)} == {"p0", "p1"}
    with counted(balancer, replicas[0]), counted(balancer, replicas[1]):
        assert balancer.pick(replicas, {"p0"}, 1015.0) == replicas[2]


def test_shares_are_those_of_the_choice() -> None:
    balancer, old, new = Balancer(2.0), REPLICAS[0], replace(REPLICAS[1], ready_at=1000.0)
    half = 1000.0 + SLOW_START_SECONDS / 2
    assert balancer.find_shares([old, new], half) == {"p0": 1.0, "p1": 0.5}
    balancer.note_failure(old, half)
    assert balancer.find_shares([old, new], half) == {"p1": 0.5}
    assert balancer.find_shares([old], half) == {"p0": LEAST_SHARE}
    assert balancer.find_shares([old, new], half + 3.0)["p0"] < 0.02  # one request tries it
    assert balancer.find_shares([], half) == {}


def test_replicas_that_are_all_new_take_turns() -> None:
    balancer = Balancer(2.0)
    replicas = [replace(replica, ready_at=1000.0) for replica in REPLICAS]
    assert {balancer.pick(replicas, (), 1000.0) for _ in range(3)} == set(replicas)


@given(st.lists(st.booleans()))
def test_counts_stay_level_and_end_at_nothing(moves: list[bool]) -> None:
    balancer = Balancer(2.0)
    held: list[ExitStack] = []
    for is_arrival in moves:
        if is_arrival:
            picked = balancer.pick(REPLICAS, (), 0.0)
            assert balancer.count_sequences(picked) == min(map(balancer.count_sequences, REPLICAS))
            held.append(ExitStack())
            held[-1].enter_context(counted(balancer, picked))
        elif held:
            held.pop(0).close()
    for request in held:
        request.close()
    assert [balancer.count_sequences(replica) for replica in REPLICAS] == [0, 0, 0]


@pytest.mark.parametrize(
    "text",
    ["", "1 2 3", "1 2 3 x", "1 2 3 nan", "1 2 3 inf", "-1 2 3 0", "1  2 3", "9999999999 0 1 0", "a b c d"],
)
def test_a_load_that_no_replica_can_have_is_not_read(text: str) -> None:
    assert read_load_header(text, 5.0) is None


def test_a_load_is_read_from_header_and_document() -> None:
    expected = LoadReport(1, 2, 3, 0.25, 5.0)
    assert read_load_header("1 2 3 0.25", 5.0) == expected
    body = b'{"server_load": 3, "waiting": 1, "running": 2, "max_sequences": 3, "kv_usage": 0.25}'
    assert read_load_document(body, 5.0) == expected
    for bad in (
        b"",
        b"[]",
        b"{}",
        body.replace(b"2", b"-2"),
        body.replace(b"2", b"x"),
        b"\xff",
        b"[" * 10_000,
    ):
        assert read_load_document(bad, 5.0) is None
