from millrace_operator.autoscaler.decide.feedback import SPENT_SECONDS, find_burn, find_burns, spend
from millrace_operator.autoscaler.decide.policy import Objective
from millrace_operator.autoscaler.signals.observation import Bracket, Latency

TTFT = Objective("TimeToFirstToken", 95, 1.0)


def measure(late: float, samples: float = 1000.0, in_bucket: float = 0.0) -> Latency:
    """So large a part of the requests late, and another in the target's own bucket."""
    bracket = Bracket(0.75, 1.5, 1 - late - in_bucket, 1 - late)
    return Latency(TTFT, 0.9, samples, bracket)


def spend_for(minutes: float, latency: Latency) -> float:
    spent: dict[str, float] = {}
    for _ in range(round(30 * minutes)):
        spent = spend(spent, find_burns([latency]), 2.0)
    return spent.get(TTFT.name, 0.0)


def test_the_burn_is_how_many_times_as_many_are_late_as_allowed() -> None:
    assert round(find_burn(measure(0.05)), 6) == 1.0
    assert round(find_burn(measure(0.5)), 6) == 10.0
    assert find_burn(measure(0.0)) == 0.0
    assert round(find_burn(measure(0.05, in_bucket=0.5)), 6) == 1.0


def test_a_large_burn_asks_within_seconds_a_small_one_within_minutes_and_an_allowed_one_never() -> None:
    assert spend_for(0.3, measure(0.5)) > SPENT_SECONDS
    assert spend_for(1.0, measure(0.1)) < SPENT_SECONDS < spend_for(2.5, measure(0.1))
    assert spend_for(600, measure(0.049)) == 0.0


def test_quiet_minutes_make_up_for_a_bad_one() -> None:
    spent: dict[str, float] = {}
    for minute in range(600):
        late = 0.1 if minute % 5 == 0 else 0.0
        spent = spend(spent, find_burns([measure(late)]), 60.0)
        assert spent.get(TTFT.name, 0.0) < SPENT_SECONDS


def test_where_too_few_requests_come_what_was_spent_is_made_up_for_slowly() -> None:
    """Within minutes it would hide most of what is late; for ever, a bad hour would count the next day."""
    spent = spend({}, find_burns([measure(0.5)]), 10.0)
    few = spend(spent, find_burns([measure(0.5, samples=5.0)]), 30.0)
    assert few == spend(spent, {}, 30.0)
    assert few[TTFT.name] == spent[TTFT.name] - 1.0
    assert spend({TTFT.name: 2 * SPENT_SECONDS}, {}, 2 * SPENT_SECONDS * 30) == {}


def test_a_percentile_without_buckets_counts_too() -> None:
    assert find_burn(Latency(TTFT, 1.5, 1000)) > 1.0
    assert find_burn(Latency(TTFT, 0.5, 1000)) == 0.0
