"""A full cluster: the message has the wanted count, and only one replica waits for room."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from millrace_operator.autoscaler.capacity.latency_model import LatencyModel
from millrace_operator.autoscaler.decide.decide import decide
from millrace_operator.autoscaler.decide.decision import Decision, Reason
from millrace_operator.autoscaler.decide.memory import Memory
from millrace_operator.autoscaler.decide.policy import Objective, Policy
from millrace_operator.autoscaler.decide.situation import NODE_SECONDS
from millrace_operator.autoscaler.signals.observation import Fleet, Signals, Unplaced

POLICY = Policy(1, 12, (Objective("TimeToFirstToken", 95, 1.0),), max_sequences=16)
FITTED = LatencyModel(num_samples=50.0, relative_error=0.02, coefficients=(0.02, 0.002, 2e-6))
WORDS = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
TICK = 30.0


class Cluster:
    """Pods as a Deployment and the scheduler would have them.

    Those without a node go first. Which of them, nobody knows: by their age's logarithm, and then by uid.
    """

    def __init__(self, room: int, policy: Policy = POLICY, count: int = 4, seed: int = 1) -> None:
        self.room, self.policy, self.rng = room, policy, random.Random(seed)
        self.now, self.num_created, self.memory = 0.0, 0, Memory(model=FITTED, informed_since=-1000.0)
        self.created: dict[str, float] = {}
        self.placed: list[str] = []
        self.desired = count
        self.decisions: list[Decision] = []
        self._converge()

    @property
    def waiting(self) -> list[str]:
        return [pod for pod in self.created if pod not in self.placed]

    def _converge(self) -> None:
        while len(self.created) < self.desired:
            self.created[f"pod-{self.num_created}"] = self.now
            self.num_created += 1
        while len(self.created) > self.desired:
            gone = self.rng.choice(self.waiting or self.placed)
            del self.created[gone]
            self.placed = [pod for pod in self.placed if pod != gone]
        self.placed += self.waiting[: max(self.room - len(self.placed), 0)]

    def fleet(self) -> Fleet:
        return Fleet(
            dict.fromkeys(self.created, "one"),
            frozenset(self.placed),
            dict.fromkeys(self.placed, 60.0),
            {pod: Unplaced(self.now - self.created[pod], WORDS) for pod in self.waiting},
            self.desired,
        )

    def run(self, seconds: float, rate: float | None = 30.0, **other: object) -> list[int]:
        """Decide for so long; return the counts. Without a rate Prometheus is gone; `other` are signals."""
        counts, end = [], self.now + seconds
        while self.now < end:
            self._converge()
            fleet = self.fleet()
            signals = Signals(fleet)
            if rate is not None:
                known = {"waiting": 0.0, "running": 9.0, "prompt_tokens": 40.0, "generation_tokens": 40.0}
                signals = Signals(fleet, fleet.ready, rate, **known | other)  # type: ignore[arg-type]
            decision, self.memory = decide(self.policy, signals, self.memory, self.now)
            self.decisions.append(decision)
            counts.append(decision.desired)
            self.desired = decision.desired
            self.now += TICK
        return counts


@pytest.mark.parametrize("seed", range(4))
def test_all_that_is_wanted_is_asked_for_until_a_node_should_have_come_and_then_one(seed: int) -> None:
    cluster = Cluster(room=4, seed=seed)
    before = cluster.run(NODE_SECONDS)
    wanted = before[-1]
    assert wanted > 6
    after = cluster.run(3600.0)
    assert after[3:] == [5] * len(after[3:])
    last = cluster.decisions[-1]
    assert (last.reason, last.binding) == (Reason.AT_CAPACITY, "capacity")
    assert last.candidates["forecast"] == wanted
    assert f"no node has room for {cluster.waiting[0]}: {WORDS}" in last.message
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


def test_an_operator_that_begins_anew_knows_how_long_its_pods_have_waited() -> None:
    cluster = Cluster(room=4)
    cluster.run(3600.0)
    cluster.memory = Memory(model=FITTED)
    assert set(cluster.run(600.0)) == {5}


def test_while_pods_get_nodes_one_after_another_all_are_asked_for() -> None:
    cluster = Cluster(room=4)
    wanted = cluster.run(NODE_SECONDS / 2)[-1]
    for _ in range(4):
        cluster.room += 1
        assert min(cluster.run(NODE_SECONDS / 2)) >= wanted


def test_where_it_is_not_known_what_is_wanted_no_replica_is_given_up() -> None:
    """Nodes and Prometheus are gone together."""
    cluster = Cluster(room=4)
    wanted = cluster.run(600.0)[-1]
    assert set(cluster.run(3600.0, rate=None)) == {wanted}


@pytest.mark.parametrize(
    "lost",
    [{"unanswered": frozenset({"P95 TimeToFirstToken"})}, {"waiting": None}, {"running": None}],
    ids=lambda lost: next(iter(lost)),
)
def test_a_signal_that_is_lost_now_and_then_moves_no_replica(lost: dict[str, object]) -> None:
    """The wanted count is uncertain then.

    Once the decision asked for all of it, and revoked that a tick later.
    """
    cluster = Cluster(room=4)
    cluster.run(NODE_SECONDS + 1200.0)
    blips = [cluster.run(TICK, **(lost if tick % 10 == 5 else {}))[-1] for tick in range(60)]
    assert set(blips) == {5}


def test_before_a_model_is_known_no_replica_is_given_up() -> None:
    cluster = Cluster(room=4, count=8)
    cluster.memory = Memory()
    assert min(cluster.run(3600.0)) == 8


def test_at_the_maximum_the_room_is_named() -> None:
    cluster = Cluster(room=4, policy=replace(POLICY, max_replicas=6))
    cluster.run(3600.0)
    last = cluster.decisions[-1]
    assert (last.desired, last.reason, last.limits[-1]) == (5, Reason.AT_CAPACITY, "capacity")


def test_pods_that_a_quota_refuses_have_no_place() -> None:
    """Eight are asked for, five may be, and four have a node."""
    cluster = Cluster(room=4, count=5)
    fleet = replace(cluster.fleet(), desired=8)
    waited = {pod: Unplaced(1000.0, WORDS) for pod in fleet.unplaced}
    signals = Signals(
        replace(fleet, unplaced=waited),
        fleet.ready,
        30.0,
        waiting=0.0,
        running=9.0,
        prompt_tokens=40,
        generation_tokens=40,
    )
    decision, _ = decide(POLICY, signals, cluster.memory, 0.0)
    assert (decision.desired, decision.binding) == (5, "capacity")


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
        waited = Unplaced(TICK * tick, WORDS)
        fleet = Fleet(
            dict.fromkeys(pods, "one") | {"new-0": "two", "new-1": "two"},
            frozenset(pods),
            unplaced={"new-0": waited, "new-1": waited},
            desired=count,
        )
        signals = Signals(fleet, fleet.ready, 12.0, waiting=0.0, running=9.0)
        decision, cluster.memory = decide(POLICY, signals, cluster.memory, cluster.now + TICK * tick)
        assert decision.desired >= count
        assert decision.binding != "capacity"


@pytest.mark.parametrize("words", ["", "x" * 500])
def test_the_schedulers_words_are_quoted_as_far_as_they_say_something(words: str) -> None:
    pods = dict.fromkeys(("a", "b"), "one")
    fleet = Fleet(pods, frozenset({"a"}), unplaced={"b": Unplaced(1.0, words)}, desired=2)
    decision, _ = decide(POLICY, Signals(fleet), Memory(), 0.0)
    assert "no node has room for b" in decision.message
    assert len(decision.message) < 600
    assert decision.message.count(": ") == 1 + bool(words)
