"""Hours in which requests come and are late by chance, for a cause that no replica cures.

Tests with constant rates had hidden that the noise of a rate looks like more load: feedback forgot each half
hour that steps had not helped, and 2 replicas became 40.
"""

from dataclasses import replace

import pytest

from millrace_operator.autoscaler.decide.attempts import Attempts
from millrace_operator.autoscaler.decide.policy import Objective, Policy
from tests.operator.autoscaler.chance import Chance
from tests.operator.autoscaler.hours import FITTED, HOUR, LONGER_TICKS, TTFT, play, remembered
from tests.operator.autoscaler.made_signals import make_fleet
from tests.operator.autoscaler.sources import READS_AUTOSCALER

pytestmark = READS_AUTOSCALER

TPOT = Objective("TimePerOutputToken", 95, 0.1)
HALF_HOUR = HOUR / 2


@pytest.mark.slow
@LONGER_TICKS
@pytest.mark.parametrize(("rate", "batch", "late"), [(1.2, 1, 0.06), (3.0, 3, 0.08)])
def test_noise_is_no_other_cause(rate: float, batch: int, late: float, tick_seconds: float) -> None:
    chance = Chance(lambda _: rate, lambda *_: late, (TTFT,), batch=batch, tick_seconds=tick_seconds)
    counts, _, _ = play(chance.look, 3, 6 * HOUR, Policy(1, 40, (TTFT,)), tick_seconds=tick_seconds)
    assert max(counts) <= 8
    assert sum(counts) / len(counts) <= 2.5


@pytest.mark.slow
@LONGER_TICKS
@pytest.mark.parametrize("most", [20, 22, 40])
def test_the_count_of_a_day_goes_at_night_also_where_it_was_the_maximum(
    most: int, tick_seconds: float
) -> None:
    def look_up(now: float, *_: object) -> float:
        return 0.01 if now < HOUR else 0.1

    chance = Chance(lambda now: 60.0 if now < HOUR else 2.0, look_up, (TTFT,), tick_seconds=tick_seconds)
    counts, _, _ = play(chance.look, 20, 4 * HOUR, Policy(1, most, (TTFT,)), tick_seconds=tick_seconds)
    assert counts[int(HOUR / tick_seconds) - 1] >= 10
    assert counts[-1] <= 3


@pytest.mark.slow
@LONGER_TICKS
def test_an_objective_that_no_replica_cures_hides_none_that_some_do(tick_seconds: float) -> None:
    """First tokens are late for good. From the second hour on ten replicas are needed for the others."""

    def find_part(now: float, count: int, objective: Objective) -> float:
        if objective is TTFT:
            return 0.1
        return 0.02 if now < HOUR or count >= 10 else 0.05 + 0.03 * (10 - count)

    chance = Chance(lambda _: 12.0, find_part, (TTFT, TPOT), tick_seconds=tick_seconds)
    counts, _, _ = play(chance.look, 8, 4 * HOUR, Policy(1, 20, (TTFT, TPOT)), tick_seconds=tick_seconds)
    assert chance.find_late_part(TPOT, range(2, 4)) < 0.05
    assert max(counts[int(2 * HOUR / tick_seconds) :]) <= 14


@pytest.mark.slow
@LONGER_TICKS
def test_fewer_replicas_than_were_of_no_use_are_kept_only_where_they_are_no_worse(
    tick_seconds: float,
) -> None:
    """7 % are late whatever the count, and three points more for each replica below ten."""
    chance = Chance(
        lambda _: 12.0,
        lambda _, count, __: 0.07 + 0.03 * max(0, 10 - count),
        (TTFT,),
        tick_seconds=tick_seconds,
    )
    play(chance.look, 10, 6 * HOUR, Policy(1, 30, (TTFT,)), tick_seconds=tick_seconds)
    for hour in range(1, 6):
        assert chance.find_late_part(TTFT, range(hour, hour + 1)) < 0.15


@pytest.mark.slow
@LONGER_TICKS
@pytest.mark.parametrize("rate", [2.0, 20.0])
def test_an_objective_that_is_kept_grows_nothing_where_no_model_is_proven(
    rate: float, tick_seconds: float
) -> None:
    doubtful = remembered(model=replace(FITTED, relative_error=0.4))
    chance = Chance(lambda _: rate, lambda *_: 0.04, (TTFT,), seed=2, tick_seconds=tick_seconds)
    counts, _, _ = play(chance.look, 3, 2 * HOUR, Policy(1, 40, (TTFT,)), doubtful, tick_seconds=tick_seconds)
    assert max(counts) <= 5


@pytest.mark.slow
@LONGER_TICKS
def test_a_step_whose_replicas_were_taken_away_is_under_way_no_more(tick_seconds: float) -> None:
    """Feedback asked for 7; there are 4 by now, one of which is not Ready for some seconds each minute."""
    chance = Chance(
        lambda _: 12.0, lambda _, count, __: 0.12 if count < 6 else 0.02, (TTFT,), tick_seconds=tick_seconds
    )

    def look(now: float, count: int) -> object:
        gone = f"pod-{int(now // 58) % count}" if now % 58 < 4 else None
        fleet = make_fleet(count)
        fleet = replace(fleet, ready=fleet.ready - {gone})
        return replace(chance.look(now, count), fleet=fleet, reporting=fleet.ready)

    asked = remembered(attempts={TTFT.name: Attempts(6, 2.4, 12.0, 0.0, 7)})
    counts, _, _ = play(look, 4, HOUR, Policy(1, 10, (TTFT,)), asked, tick_seconds=tick_seconds)  # type: ignore[arg-type]
    assert min(counts[int(HALF_HOUR / tick_seconds) :]) >= 6
