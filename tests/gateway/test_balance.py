from contextlib import ExitStack
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_gateway.route.balance import Balancer
from millrace_gateway.route.objects import Replica, ServiceKey
from millrace_runtime.contract import SLOW_START_SECONDS

REPLICAS = tuple(
    Replica(f"p{i}", ServiceKey("a", "chat"), f"p{i}", f"127.9.8.{i}", is_ready=True) for i in range(3)
)


def test_the_least_loaded_is_picked() -> None:
    balancer = Balancer(2.0)
    with balancer.count_request(REPLICAS[0]):
        with balancer.count_request(REPLICAS[2]):
            assert balancer.pick(REPLICAS, (), 0.0) == REPLICAS[1]
        with balancer.count_request(REPLICAS[1]), balancer.count_request(REPLICAS[1]):
            assert balancer.pick(REPLICAS, (), 0.0) == REPLICAS[2]


def test_a_request_that_fails_is_counted_off() -> None:
    balancer = Balancer(2.0)
    with pytest.raises(ConnectionError), balancer.count_request(REPLICAS[0]):
        raise ConnectionError
    assert balancer.in_flight(REPLICAS[0]) == 0


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


def test_one_that_refused_comes_last_until_its_time_is_over() -> None:
    balancer = Balancer(2.0)
    balancer.suspect(REPLICAS[0], 10.0)
    with balancer.count_request(REPLICAS[1]), balancer.count_request(REPLICAS[2]):
        assert balancer.pick(REPLICAS, (), 11.9) != REPLICAS[0]
        assert balancer.pick(REPLICAS, {"p1", "p2"}, 11.9) == REPLICAS[0]
        assert balancer.pick(REPLICAS, (), 12.0) == REPLICAS[0]


def test_when_all_are_suspect_each_is_asked_all_the_same() -> None:
    balancer = Balancer(2.0)
    for replica in REPLICAS:
        balancer.suspect(replica, 0.0)
    assert {balancer.pick(REPLICAS, (), 1.0) for _ in range(3)} == set(REPLICAS)


def send(balancer: Balancer, held: ExitStack, replicas: list[Replica], times: list[float]) -> list[str]:
    """Send a request at each time, which all stay in flight; return who got them."""
    picked = []
    for now in times:
        replica = balancer.pick(replicas, (), now)
        assert replica is not None
        held.enter_context(balancer.count_request(replica))
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
    with balancer.count_request(replicas[0]), balancer.count_request(replicas[1]):
        assert balancer.pick(replicas, {"p0"}, 1015.0) == replicas[2]


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
            assert balancer.in_flight(picked) == min(map(balancer.in_flight, REPLICAS))
            held.append(ExitStack())
            held[-1].enter_context(balancer.count_request(picked))
        elif held:
            held.pop(0).close()
    for request in held:
        request.close()
    assert [balancer.in_flight(replica) for replica in REPLICAS] == [0, 0, 0]
