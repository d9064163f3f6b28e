from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_gateway.balance import Balancer
from millrace_gateway.objects import Replica, ServiceKey

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
