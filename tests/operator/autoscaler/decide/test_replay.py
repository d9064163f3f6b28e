"""Whole sequences on simulated replicas, whose hardware `decide` does not know."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import pytest

from millrace_operator.autoscaler.capacity.capacity import find_capacity
from millrace_operator.autoscaler.capacity.latency_model import LatencyModel
from millrace_operator.autoscaler.capacity.replica import Replica
from millrace_operator.autoscaler.decide.decision import Decision, Reason
from millrace_operator.autoscaler.decide.memory import Memory
from millrace_operator.autoscaler.decide.policy import Objective, Policy
from millrace_operator.autoscaler.signals.observation import Signals
from millrace_operator.autoscaler.simulate.load import draw_requests, fixed_lengths
from millrace_operator.autoscaler.simulate.prometheus import Scraping
from millrace_operator.autoscaler.simulate.run import Choice, Ours, Run, Setting, simulate
from tests.operator.autoscaler.hardware import SLOW
from tests.operator.autoscaler.sources import READS_AUTOSCALER

pytestmark = READS_AUTOSCALER

TTFT = Objective("TimeToFirstToken", 95, 1.0)
POLICY = Policy(1, 8, (TTFT,), scale_down_window_seconds=30, scale_down_interval_seconds=4)
TRUTH = LatencyModel(coefficients=(0.02, 0.002, 2e-6))
CAPACITY = find_capacity(Replica(TRUTH, 40, 40, 60, 16), POLICY.objectives, 3).rate
RECOVERY = 2 * SLOW.cold_start_seconds + 30
PEAK_ENDS = 400.0
SEEDS = (1, 2, 3)
INTERVALS = (2.0, 5.0, 15.0, 30.0, 60.0)
"""Of scrapes, in seconds."""
FEW = dict(zip(INTERVALS, itertools.cycle(SEEDS), strict=False))
SEEDS_AND_INTERVALS = [
    pytest.param(seed, interval, marks=() if FEW[interval] == seed else pytest.mark.long)
    for interval in INTERVALS
    for seed in SEEDS
]

Rate = Callable[[float], float]


class Recorder(Ours):
    """Ours, with every decision kept."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.decisions: list[tuple[float, Decision]] = []

    def choose(self, signals: Signals, now: float) -> Choice:
        choice = super().choose(signals, now)
        assert self.decision is not None
        self.decisions.append((now, self.decision))
        return choice


@dataclass
class Day:
    """A run and its decisions."""

    run: Run
    scaler: Recorder

    def desired(self, begin: float = 0.0, end: float = 1e9) -> list[int]:
        return [decision.desired for at, decision in self.scaler.decisions if begin <= at < end]

    def reasons(self, begin: float, end: float) -> set[Reason]:
        return {decision.reason for at, decision in self.scaler.decisions if begin <= at < end}

    def late(self, begin: float, end: float) -> float:
        """Return the share of the requests of that time that waited too long."""
        came = [answer for answer in self.run.answers if begin <= answer.request.at < end]
        return sum(answer.time_to_first_token > TTFT.target_seconds for answer in came) / len(came)


def live(rate_at: Rate, seconds: float, seed: int = 1, scraping: Scraping | None = None) -> Day:
    scaler = Recorder(POLICY)
    load = draw_requests(rate_at, 3 * CAPACITY, seconds, fixed_lengths(40, 40), seed)
    setting = Setting(SLOW, POLICY.objectives, scraping or Scraping(5.0), seed=seed)
    return Day(simulate(setting, scaler, load, seconds), scaler)


def ramp(at: float) -> float:
    """A third of a replica's capacity, up to three times it within a minute, then nothing."""
    if at >= PEAK_ENDS:
        return 0.0
    return CAPACITY * min(0.33 + max(at - 60, 0) * 2.67 / 60, 3.0)


def slack(interval: float) -> float:
    """What a long interval costs: load is seen only when it is scraped, and new replicas begin slowly."""
    if interval < 30:
        return 0.0
    return 2 * interval if interval > 30 else interval / 2


def count_changes(counts: list[int]) -> int:
    return sum(one != other for one, other in pairwise(counts))


@pytest.mark.parametrize(("seed", "interval"), SEEDS_AND_INTERVALS)
def test_a_ramp_to_three_replicas_load_is_followed_and_left_again(seed: int, interval: float) -> None:
    end = PEAK_ENDS + 120 + 6 * interval
    day = live(ramp, end, seed, Scraping(interval))
    assert max(day.desired()) >= 4
    assert day.late(120 + RECOVERY + slack(interval), PEAK_ENDS) <= 0.05
    assert day.desired()[-1] == 1
    assert day.reasons(end - 5, end) == {Reason.AT_MINIMUM}
    assert (day.run.num_refused, day.run.num_killed) == (0, 0)
    assert len(day.run.answers) == day.run.num_arrived


@pytest.mark.parametrize(("seed", "interval"), SEEDS_AND_INTERVALS)
def test_a_sudden_jump_recovers_within_two_cold_starts_and_half_a_minute(seed: int, interval: float) -> None:
    day = live(lambda at: CAPACITY * (0.33 if at < 60 else 3.0), 300, seed, Scraping(interval))
    assert day.late(60 + RECOVERY + slack(interval), 300) <= 0.05


def test_prometheus_lost_at_the_peak_holds_every_replica() -> None:
    day = live(ramp, PEAK_ENDS, scraping=Scraping(5.0, is_down=lambda at: 150 <= at < 280))
    [held] = set(day.desired(152, 280))
    assert day.reasons(152, 280) == {Reason.SIGNALS_MISSING}
    # Afterwards a whole window has to be seen before anything goes.
    assert min(day.desired(280, 310)) == held


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in SEEDS[1:])])
def test_half_of_the_scrapes_lost_leaves_enough_replicas(seed: int) -> None:
    day = live(lambda _: 2.2 * CAPACITY, 600, seed, Scraping(5.0, lost_share=0.5))
    assert day.late(150, 600) <= 0.05


@pytest.mark.parametrize("num_seeds", [3, pytest.param(7, marks=pytest.mark.long)])
def test_steady_noisy_load_does_not_flap(num_seeds: int) -> None:
    """Once it is known what a replica carries: before, replicas come by feedback, and go again."""
    seeds = range(1, num_seeds + 1)
    changes = [count_changes(live(lambda _: 1.5 * CAPACITY, 900, seed).desired(300)) for seed in seeds]
    assert max(changes) <= 4
    assert sum(changes) <= 12 / 7 * num_seeds


def test_no_load_stays_at_the_minimum() -> None:
    assert set(live(lambda _: 0.0, 60).desired()) == {1}


def test_a_replay_is_reproducible() -> None:
    one, other = live(ramp, 90), live(ramp, 90)
    assert [d.message for _, d in one.scaler.decisions] == [d.message for _, d in other.scaler.decisions]
    assert one.scaler.memory == other.scaler.memory != Memory()
