"""Whole days in which something breaks: nothing goes while too little is known, and nobody is cut off.

Two requests a second, ten from minute 5 to minute 25, and two again. What breaks does so at the peak. A
replica's hardware, its cold start of a minute and its slow first steps are not known to `decide`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from millrace_operator.autoscaler.decide.policy import Objective, Policy
from millrace_operator.autoscaler.decide.situation import NODE_SECONDS
from millrace_operator.autoscaler.simulate.hardware import Hardware
from millrace_operator.autoscaler.simulate.load import CONVERSATION, draw_requests
from millrace_operator.autoscaler.simulate.prometheus import GATEWAY, Scraping
from millrace_operator.autoscaler.simulate.run import Ours, Run, Setting, is_within, simulate
from tests.operator.autoscaler.sources import READS_AUTOSCALER

pytestmark = READS_AUTOSCALER

OBJECTIVES = (Objective("TimeToFirstToken", 95, 3.0), Objective("TimePerOutputToken", 95, 0.1))
POLICY = Policy(2, 12, OBJECTIVES)
HARDWARE = Hardware(cold_start_seconds=60.0)
SETTING = Setting(HARDWARE, OBJECTIVES, initial_replicas=2)
PEAK, PEAK_ENDS = 300.0, 1500.0
FAULT = 700.0
"""When it begins: the peak has been served within the objectives for minutes."""
NOTICED = FAULT + 15.0
"""When targets that are silent since are known to be: a sample of three scrapes ago is still fresh."""
RECOVERY = 2 * HARDWARE.cold_start_seconds + 30
"""Within which the objectives are met again after a fault: as after a jump of the load."""
NEEDED = 7
"""Replicas that serve the peak within the objectives; six do not."""
ALLOWED = 0.05
"""The share of requests that may miss an objective of P95."""
SEEDS = (1, pytest.param(2, marks=pytest.mark.long))

Rate = Callable[[float], float]


def peak(at: float) -> float:
    return 10.0 if PEAK <= at < PEAK_ENDS else 2.0


@dataclass(frozen=True)
class Day:
    """A run, asked for parts of it."""

    run: Run

    def desired(self, begin: float, end: float) -> list[int]:
        return [moment.choice.replicas for moment in self.run.moments if begin <= moment.at < end]

    def falls(self, begin: float, end: float) -> list[str]:
        """Return when and why the count fell."""
        return [
            f"{other.at:g} s: {other.choice.why}"
            for one, other in pairwise(self.run.moments)
            if begin <= other.at < end and other.choice.replicas < one.choice.replicas
        ]

    def missed(self, begin: float, end: float) -> float:
        """Return the share of the requests of that time that were answered and missed an objective."""
        came = [answer for answer in self.run.answers if begin <= answer.request.at < end]
        return sum(not all(is_within(answer, one) for one in OBJECTIVES) for answer in came) / len(came)

    def assert_nobody_lost(self, num_killed: int = 0) -> None:
        """Everybody got an answer but those whom the fault itself took."""
        run = self.run
        assert (run.num_refused, run.num_killed) == (0, num_killed)
        assert len(run.answers) == run.num_arrived - num_killed


def live(setting: Setting, seed: int, seconds: float, rate_at: Rate = peak) -> Day:
    load = draw_requests(rate_at, 20.0, seconds, CONVERSATION, seed)
    return Day(simulate(replace(setting, seed=seed), Ours(POLICY), load, seconds))


def scrape(**faults: object) -> Setting:
    return replace(SETTING, scraping=Scraping(5.0, **faults))  # type: ignore[arg-type]


def four_of_five_are_silent(target: str, at: float) -> bool:
    """The gateway too: whatever is known comes from every fifth pod."""
    return FAULT <= at < FAULT + 200 and (target == GATEWAY or int(target.removeprefix("pod-")) % 5 != 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_ten_minutes_without_prometheus_at_the_peak_hold_every_replica(seed: int) -> None:
    back = FAULT + 600
    day = live(scrape(is_down=lambda at: FAULT <= at < back), seed, back + 180)
    assert len(set(day.desired(FAULT, back))) == 1
    assert day.falls(FAULT, back + POLICY.scale_down_window_seconds) == []  # that window is to be seen first
    assert day.missed(FAULT, back + 180) <= ALLOWED
    day.assert_nobody_lost()


@pytest.mark.parametrize("seed", SEEDS)
def test_load_that_grew_unseen_is_served_a_recovery_after_prometheus_is_back(seed: int) -> None:
    """What the replicas at hand could not serve is worked off too."""
    back = FAULT + 300
    setting = scrape(is_down=lambda at: FAULT <= at < back)
    day = live(setting, seed, back + 500, lambda at: 14.0 if at >= FAULT + 150 else peak(at))
    assert day.falls(FAULT, back + POLICY.scale_down_window_seconds) == []
    assert day.missed(back + RECOVERY, back + 500) <= ALLOWED
    day.assert_nobody_lost()


@pytest.mark.parametrize("seed", SEEDS)
def test_half_of_the_scrapes_lost_cost_no_replica_and_follow_the_peak(seed: int) -> None:
    day = live(scrape(lost_share=0.5), seed, 1200)
    assert day.falls(PEAK, 1200) == []
    assert day.missed(PEAK + RECOVERY, 1200) <= ALLOWED
    day.assert_nobody_lost()


@pytest.fixture(scope="module", params=SEEDS)
def silence(request: pytest.FixtureRequest) -> Day:
    return live(scrape(is_unreachable=four_of_five_are_silent), request.param, FAULT + 600)


def test_four_of_five_targets_silent_cost_nobody_an_answer(silence: Day) -> None:
    assert silence.falls(NOTICED, FAULT + 200) == []
    assert silence.missed(FAULT, FAULT + 600) <= ALLOWED
    silence.assert_nobody_lost()


def test_after_a_silence_nothing_goes_before_the_window_was_seen(silence: Day) -> None:
    assert silence.falls(NOTICED, FAULT + 200 + POLICY.scale_down_window_seconds) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_three_crashes_at_the_peak_are_made_up_for(seed: int) -> None:
    day = live(replace(SETTING, crashes_at=(FAULT, FAULT + 2, FAULT + 4)), seed, FAULT + 500)
    assert day.falls(FAULT, FAULT + HARDWARE.cold_start_seconds) == []
    assert day.run.num_killed > 0
    assert day.missed(FAULT + RECOVERY, FAULT + 500) <= ALLOWED
    day.assert_nobody_lost(day.run.num_killed)


@pytest.mark.parametrize("seed", SEEDS)
def test_three_containers_that_restart_are_not_taken_for_less_load(seed: int) -> None:
    """Their counters begin at zero, and nothing else shows the load: all requests bypass the gateway."""
    setting = scrape(is_unreachable=lambda target, _: target == GATEWAY)
    day = live(replace(setting, restarts_at=(FAULT, FAULT + 2, FAULT + 4)), seed, FAULT + 500)
    assert day.falls(FAULT, FAULT + HARDWARE.restart_seconds + 60) == []  # the rates look back a minute
    assert max(day.desired(FAULT, FAULT + 60)) <= day.desired(FAULT, FAULT + 2)[0] + 2
    assert day.run.num_killed > 0
    assert day.missed(FAULT + RECOVERY, FAULT + 500) <= ALLOWED
    day.assert_nobody_lost(day.run.num_killed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rollout_in_a_burst_cuts_nobody_off_and_costs_no_replica(seed: int) -> None:
    """The new revision is a tenth slower. It begins half a minute after the load rose fivefold."""
    slower = replace(HARDWARE, token_seconds=0.000275, weights_seconds=0.0176)
    day = live(replace(SETTING, rollout_at=PEAK + 30, next_hardware=slower), seed, PEAK + 700)
    done = PEAK + 30 + 2 * HARDWARE.cold_start_seconds
    assert set(day.run.moments[-1].signals.fleet.revisions.values()) == {"revision-1"}
    assert day.falls(PEAK + 30, done) == []
    assert day.missed(done + RECOVERY, PEAK + 700) <= ALLOWED
    day.assert_nobody_lost()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_full_cluster_is_asked_for_what_the_load_needs_and_later_for_one_replica_more(seed: int) -> None:
    """Four pods run, others stay Pending. Afterwards the count returns, and Pending pods go first."""
    day = live(replace(SETTING, capacity=4), seed, PEAK_ENDS + 600)
    assert min(day.desired(PEAK + RECOVERY, PEAK + NODE_SECONDS)) >= NEEDED
    assert set(day.desired(PEAK + NODE_SECONDS + RECOVERY, PEAK_ENDS)) == {5}
    assert day.desired(PEAK_ENDS + 300, PEAK_ENDS + 600)[-1] <= 4
    assert day.missed(PEAK_ENDS + 300, PEAK_ENDS + 600) <= ALLOWED
    day.assert_nobody_lost()


@pytest.mark.parametrize("seed", SEEDS)
def test_nodes_that_come_late_are_waited_for(seed: int) -> None:
    """Most cold starts take five times as long: four minutes for a node, then the minute of a pod."""
    hardware = replace(HARDWARE, node_seconds=240.0, pods_per_node=2)
    day = live(replace(SETTING, hardware=hardware), seed, 1000)
    late = hardware.node_seconds + hardware.cold_start_seconds
    assert day.falls(PEAK, PEAK + late) == []
    assert day.missed(PEAK + late + RECOVERY, 1000) <= ALLOWED
    day.assert_nobody_lost()
