"""A cluster that is full: what is wanted is told, one replica asks for room, and the rest is not piled up."""

from dataclasses import replace
from itertools import pairwise

import pytest

from millrace_operator.autoscale.decide import decide
from millrace_operator.autoscale.decision import Decision, Reason
from millrace_operator.autoscale.latency_model import LatencyModel
from millrace_operator.autoscale.memory import NODE_SECONDS, Memory
from millrace_operator.autoscale.observation import Fleet, Signals
from millrace_operator.autoscale.policy import Objective, Policy

POLICY = Policy(1, 12, (Objective("TimeToFirstToken", 95, 1.0),), max_sequences=16)
FITTED = LatencyModel(num_samples=50.0, relative_error=0.02, coefficients=(0.02, 0.002, 2e-6))
WORDS = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
TICK = 30.0


class Cluster:
    """Pods as a Deployment and the scheduler would have them: those without a node go first."""

    def __init__(self, room: int, policy: Policy = POLICY, count: int = 4) -> None:
        self.room, self.policy = room, policy
        self.now, self.created, self.memory = 0.0, 0, Memory(model=FITTED, informed_since=-1000.0)
        self.pods: list[str] = []
        self.desired = count
        self.decisions: list[Decision] = []
        self._converge()

    def _converge(self) -> None:
        while len(self.pods) < self.desired:
            self.pods.append(f"pod-{self.created}")
            self.created += 1
        del self.pods[self.desired :]

    def fleet(self) -> Fleet:
        placed = self.pods[: self.room]
        return Fleet(
            dict.fromkeys(self.pods, "one"),
            frozenset(placed),
            dict.fromkeys(placed, 60.0),
            dict.fromkeys(self.pods[self.room :], WORDS),
            self.desired,
        )

    def run(self, seconds: float, rate: float = 30.0) -> list[int]:
        """Decide for so long; return the counts."""
        counts, end = [], self.now + seconds
        while self.now < end:
            fleet = self.fleet()
            signals = Signals(
                fleet, fleet.ready, rate, waiting=0.0, running=9.0, prompt_tokens=40, generation_tokens=40
            )
            decision, self.memory = decide(self.policy, signals, self.memory, self.now)
            self.decisions.append(decision)
            counts.append(decision.desired)
            self.desired = decision.desired
            self._converge()
            self.now += TICK
        return counts


def test_all_that_is_wanted_is_asked_for_until_a_node_should_have_come_and_then_one() -> None:
    cluster = Cluster(room=4)
    before = cluster.run(NODE_SECONDS)
    wanted = before[-1]
    assert wanted > 6
    after = cluster.run(3600.0)
    assert after[3:] == [5] * len(after[3:])
    last = cluster.decisions[-1]
    assert (last.reason, last.binding) == (Reason.AT_CAPACITY, "capacity")
    assert last.candidates["forecast"] == wanted
    assert f"no node has room for pod-4: {WORDS}" in last.message
    assert cluster.memory.flaps == ()


def test_room_that_comes_is_used_at_once() -> None:
    cluster = Cluster(room=4)
    wanted = cluster.run(NODE_SECONDS)[-1]
    cluster.run(3600.0)
    cluster.room = 20
    assert cluster.run(120.0)[-1] == wanted
    assert cluster.memory.flaps == ()


def test_less_load_goes_down_as_ever_from_the_replicas_that_serve() -> None:
    cluster = Cluster(room=4)
    cluster.run(3600.0)
    counts = cluster.run(1800.0, rate=1.0)
    assert counts[-1] < 4
    assert all(one - other <= 1 for one, other in pairwise(counts))


def test_the_wait_for_room_is_no_cold_start() -> None:
    cluster = Cluster(room=4)
    cluster.run(3600.0)
    known = cluster.memory.cold_starts
    waited = cluster.pods[4]
    fleet = cluster.fleet()
    served = replace(fleet, ready=fleet.ready | {waited}, unschedulable={}, cold_starts={waited: 3000.0})
    _, memory = decide(POLICY, Signals(served), cluster.memory, cluster.now)
    assert memory.cold_starts == known
    assert memory.cold_start_seconds == 60.0


def test_a_node_that_came_late_is_part_of_a_cold_start() -> None:
    cluster = Cluster(room=4)
    cluster.run(NODE_SECONDS / 2)
    waited = cluster.pods[4]
    fleet = cluster.fleet()
    served = replace(fleet, ready=fleet.ready | {waited}, unschedulable={}, cold_starts={waited: 500.0})
    _, memory = decide(POLICY, Signals(served), cluster.memory, cluster.now)
    assert 500.0 in memory.cold_starts


def test_what_a_person_wants_at_least_is_asked_for_all_the_same() -> None:
    cluster = Cluster(room=4, policy=replace(POLICY, min_replicas=8), count=8)
    cluster.run(NODE_SECONDS + 600.0)
    assert cluster.decisions[-1].desired == 8


def test_a_new_revision_that_finds_no_room_takes_no_replica_away() -> None:
    """Of a rollout the planner decides which replica makes room."""
    cluster = Cluster(room=4)
    cluster.run(60.0, rate=12.0)
    count = cluster.desired
    pods = [f"pod-{number}" for number in range(count)]
    for tick in range(60):
        fleet = Fleet(
            dict.fromkeys(pods, "one") | {"new-0": "two", "new-1": "two"},
            frozenset(pods),
            unschedulable={"new-0": WORDS, "new-1": WORDS},
            desired=count,
        )
        signals = Signals(fleet, fleet.ready, 12.0, waiting=0.0, running=9.0)
        decision, cluster.memory = decide(POLICY, signals, cluster.memory, cluster.now + TICK * tick)
        assert decision.desired >= count
        assert decision.binding != "capacity"


@pytest.mark.parametrize("words", ["", "x" * 500])
def test_the_schedulers_words_are_quoted_as_far_as_they_say_something(words: str) -> None:
    pods = dict.fromkeys(("a", "b"), "one")
    fleet = Fleet(pods, frozenset({"a"}), unschedulable={"b": words}, desired=2)
    decision, _ = decide(POLICY, Signals(fleet), Memory(), 0.0)
    assert "no node has room for b" in decision.message
    assert len(decision.message) < 600
    assert decision.message.count(": ") == 1 + bool(words)
