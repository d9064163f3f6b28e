"""A simulated service's pods: where they go, how they end, what is lost with them."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from millrace_gateway.route.standing import find_share
from millrace_operator.autoscaler.simulate.agenda import Agenda
from millrace_operator.autoscaler.simulate.engine import Answer
from millrace_operator.autoscaler.simulate.hardware import Hardware
from millrace_operator.autoscaler.simulate.load import Request
from millrace_operator.autoscaler.simulate.service import Service
from millrace_operator.rollout.surge import Method, RevisionState, plan_rollout

HARDWARE = Hardware(
    noise=0.0,
    unevenness=0.0,
    stalls_per_hour=0.0,
    cold_start_seconds=60.0,
    cold_start_spread=0.0,
    warm_up_factor=1.0,
)
OTHER = replace(HARDWARE, kv_tokens=100_000)


class World:
    """A service whose pods are looked at from second to second."""

    def __init__(
        self,
        count: int,
        hardware: Hardware = HARDWARE,
        capacity: int | None = None,
        drain_seconds: float = 600.0,
    ) -> None:
        self.agenda = Agenda()
        self.answers: list[Answer] = []
        self.service = Service(
            self.agenda, hardware, 1, self.answers.append, capacity=capacity, drain_seconds=drain_seconds
        )
        self.service.start(count)

    def submit(self, count: int = 1, tokens: int = 50) -> None:
        for _ in range(count):
            self.service.submit(Request(self.agenda.now, 100, tokens))

    def tick_until(self, end: float, look: Callable[[], None] = lambda: None) -> None:
        """Let each second's tick ask for the same count again."""
        while self.agenda.now < end:
            self.agenda.run_until(self.agenda.now + 1)
            self.service.scale(self.service.desired)
            look()

    @property
    def names(self) -> list[str]:
        return [pod.name for pod in self.service.pods]

    @property
    def num_ready(self) -> int:
        return len(self.service.ready)


def test_a_replica_that_does_not_finish_in_time_is_killed_with_what_it_had() -> None:
    world = World(2, drain_seconds=10.0)
    world.submit(6, tokens=5000)
    world.service.scale(1)
    world.tick_until(9)
    assert (len(world.names), world.service.num_killed) == (2, 0)
    world.tick_until(11)
    assert (len(world.names), world.service.num_killed) == (1, 3)
    world.tick_until(1000)
    assert (len(world.answers), world.service.num_killed) == (3, 3)


def test_a_replica_that_finishes_in_time_loses_nobody() -> None:
    world = World(2, drain_seconds=60.0)
    world.submit(6, tokens=100)
    world.service.scale(1)
    world.tick_until(100)
    assert (len(world.answers), world.service.num_killed, len(world.names)) == (6, 0, 1)


def test_replicas_with_equally_few_requests_take_turns() -> None:
    world = World(3)
    for _ in range(30):
        world.submit()
        world.agenda.run_until(world.agenda.now + 10)
    assert [pod.engine.counters.received for pod in world.service.pods] == [10, 10, 10]


def test_the_idlest_goes_and_what_is_not_ready_goes_first() -> None:
    world = World(3)
    world.submit(4, tokens=5000)
    world.service.scale(4)
    world.service.scale(3)
    assert world.names == ["pod-0", "pod-1", "pod-2"]
    world.service.scale(2)
    assert [pod.engine.num_in_flight for pod in world.service.pods] == [1, 2, 1]
    assert [pod.name for pod in world.service.active] == ["pod-0", "pod-1"]


def test_who_comes_while_no_replica_is_ready_is_refused_and_not_held() -> None:
    """As the gateway does: a 503 at once."""
    world = World(1)
    world.service.crash()
    world.submit(3)
    world.tick_until(59)
    assert (world.service.num_refused, world.answers) == (3, [])
    world.tick_until(61)
    world.submit(2)
    world.tick_until(90)
    assert (world.service.num_refused, len(world.answers)) == (3, 2)


def test_a_crash_loses_the_busiest_pod_and_another_is_ready_after_a_cold_start() -> None:
    world = World(2)
    world.submit(3, tokens=5000)
    world.service.crash()
    assert world.service.num_killed == 2
    assert world.names == ["pod-0", "pod-2"]
    world.tick_until(59)
    assert world.num_ready == 1
    world.tick_until(61)
    assert world.num_ready == 2


def test_a_container_that_restarts_keeps_its_pod_and_counts_from_zero() -> None:
    world = World(2)
    world.submit(3, tokens=5000)
    world.tick_until(5)
    assert world.service.pods[1].engine.counters.received == 2
    world.service.restart()
    assert (world.service.num_killed, world.num_ready) == (2, 1)
    assert world.service.pods[1].engine.counters.received == 0
    world.tick_until(34)
    assert world.num_ready == 1
    world.tick_until(36)
    assert (world.names, world.num_ready) == (["pod-0", "pod-1"], 2)


def test_a_pod_beyond_the_clusters_capacity_waits_for_room() -> None:
    world = World(2, capacity=3)
    world.service.scale(5)
    world.tick_until(200)
    assert (len(world.names), world.num_ready) == (5, 3)
    world.service.settle()
    assert world.service.pod_seconds == pytest.approx(3 * 200)  # what has no place costs nothing
    world.service.crash()
    world.service.crash()
    world.tick_until(261)
    assert world.num_ready == 3


def test_a_killed_pod_leaves_its_room() -> None:
    world = World(2, capacity=2, drain_seconds=20.0)
    world.submit(2, tokens=5000)
    world.service.scale(1)
    world.service.scale(2)
    world.tick_until(79)
    assert world.num_ready == 1
    world.tick_until(82)
    assert world.num_ready == 2


def test_a_pod_without_a_node_waits_for_one_and_the_next_shares_it() -> None:
    world = World(2, replace(HARDWARE, node_seconds=200.0, pods_per_node=2))
    world.service.scale(4)
    world.tick_until(259)
    assert world.num_ready == 2
    world.tick_until(261)
    assert world.num_ready == 4
    world.service.scale(2)
    world.service.scale(4)  # the node is there still
    world.tick_until(323)
    assert world.num_ready == 4


def test_an_empty_node_goes_after_ten_minutes() -> None:
    world = World(2, replace(HARDWARE, node_seconds=200.0))
    world.service.scale(1)
    world.tick_until(601)
    world.service.scale(2)
    world.tick_until(662)
    assert world.num_ready == 1
    world.tick_until(862)
    assert world.num_ready == 2


def test_a_rollout_replaces_one_pod_after_another_and_all_serve_meanwhile() -> None:
    world, counts, ready = World(3), list[int](), list[int]()
    world.service.roll_out(OTHER)

    def look() -> None:
        counts.append(len(world.service.active))
        ready.append(world.num_ready)

    world.tick_until(179, look)
    assert (max(counts), min(ready)) == (4, 3)
    assert {pod.hardware for pod in world.service.ready} == {HARDWARE, OTHER}
    world.tick_until(183, look)
    assert (max(counts), min(ready)) == (4, 3)
    assert [pod.hardware for pod in world.service.pods] == [OTHER] * 3
    assert {pod.revision for pod in world.service.pods} == {"revision-1"}


def test_in_a_full_cluster_an_old_pod_makes_room_for_a_new_one() -> None:
    world, ready = World(3, capacity=3), list[int]()
    world.service.roll_out(OTHER)
    world.tick_until(190, lambda: ready.append(world.num_ready))
    assert [pod.hardware for pod in world.service.ready] == [OTHER] * 3
    assert min(ready) == 2


@pytest.mark.parametrize("desired", [1, 2, 5])
def test_a_rollouts_counts_are_those_that_the_operator_plans(desired: int) -> None:
    world = World(desired)
    world.service.roll_out(OTHER)

    def compare() -> None:
        old = [pod for pod in world.service.active if pod.revision == "revision-0"]
        new = [pod for pod in world.service.active if pod.revision != "revision-0"]
        if not old:
            return
        ready = sum(pod.ready_at is not None for pod in new)
        state = RevisionState("new", len(new), len(new), ready, ready)
        others = [RevisionState("old", len(old), len(old), len(old), len(old))]
        step = plan_rollout(desired, state, others, Method.SURGE)
        assert step.counts == {"old": len(old), "new": len(new)}

    world.tick_until(60.0 * desired + 10, compare)
    assert {pod.revision for pod in world.service.pods} == {"revision-1"}


def test_a_count_that_changes_in_a_rollout_is_followed() -> None:
    world = World(4)
    world.service.roll_out(OTHER)
    world.tick_until(90)
    world.service.scale(6)
    world.tick_until(95)
    assert len(world.service.active) == 7
    world.tick_until(500)
    assert [pod.hardware for pod in world.service.ready] == [OTHER] * 6


def test_more_replicas_than_the_cluster_holds_are_refused_at_the_start() -> None:
    with pytest.raises(ValueError, match="write fewer"):
        World(4, capacity=3)


def test_a_new_pod_gets_the_share_that_the_gateway_gives_it() -> None:
    """A hundred requests a pod, and one pod more; all that comes then stays."""
    world = World(2)
    world.submit(200, tokens=100_000)
    world.service.scale(3)
    world.agenda.run_until(60.5)
    new = world.service.ready[-1]
    shares = []
    for second in range(1, 31):
        world.agenda.run_until(60.0 + second)
        world.submit(10, tokens=100_000)
        shares.append(new.engine.num_in_flight / world.service.ready[0].engine.num_in_flight)
    assert shares == [pytest.approx(find_share(second), abs=0.05) for second in range(1, 31)]
