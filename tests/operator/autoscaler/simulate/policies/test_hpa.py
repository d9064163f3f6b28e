"""How far an HPA follows a wanted count, of its own metric or of another controller: sequences worked out by
hand from autoscaling/v2's rules.
"""

from dataclasses import dataclass, field

import pytest

from millrace_operator.autoscaler.signals.observation import Signals
from millrace_operator.autoscaler.signals.scrapes import DEFAULT_WINDOWS, Windows
from millrace_operator.autoscaler.simulate.policies.hpa import Behaviour, Bounds, Rules, ThroughHpa
from millrace_operator.autoscaler.simulate.run import Choice
from tests.operator.autoscaler.made_signals import make_signals


def play(rules: Rules, wanted: list[int], current: int = 10) -> list[int]:
    """Return the counts, looked at every 15 s."""
    behaviour, counts = Behaviour(Bounds(1, 100), rules), []
    for tick, count in enumerate(wanted, 1):
        current = behaviour.follow(current, count, 15.0 * tick)
        counts.append(current)
    return counts


@pytest.mark.parametrize(
    ("rules", "wanted", "counts"),
    [
        (Rules(), [50] * 3, [20, 40, 50]),
        (Rules(), [5] * 22, [10] * 20 + [5] * 2),  # what it found counts as wanted for 300 s
        (Rules(up_period=60.0), [50] * 6, [20, 20, 20, 20, 40, 40]),
        (Rules(up_window=30.0), [50, 12, 50, 50, 50], [10, 10, 12, 24, 48]),
        (Rules(down_window=30.0), [5, 5, 5, 5], [10, 10, 5, 5]),
        (Rules(down_window=0.0, down_pods=1, down_period=60.0), [1] * 6, [9, 9, 9, 9, 8, 8]),
        (Rules(down_window=0.0), [1, 200], [1, 5]),
    ],
)
def test_windows_and_speeds(rules: Rules, wanted: list[int], counts: list[int]) -> None:
    assert play(rules, wanted) == counts


@dataclass
class Wishing:
    """Wishes a count by time."""

    counts: dict[float, int]
    tick_seconds: float = 60.0
    windows: Windows = DEFAULT_WINDOWS
    asked: list[float] = field(default_factory=list)

    def choose(self, signals: Signals, now: float) -> Choice:
        del signals
        self.asked.append(now)
        return Choice(next(count for until, count in self.counts.items() if now < until), "wished")


def play_wishes(wishing: Wishing, count: int, seconds: float) -> dict[float, int]:
    scaler, counts = ThroughHpa(Bounds(1, 40), wishing), {}
    for tick in range(1, int(seconds / scaler.tick_seconds) + 1):
        now = tick * scaler.tick_seconds
        count = counts[now] = scaler.choose(make_signals(count, count), now).replicas
    return counts


def test_a_wish_is_asked_for_each_minute_and_followed_at_the_speed_of_an_hpa() -> None:
    wishing = Wishing({70.0: 4, 1e9: 30})
    counts = play_wishes(wishing, 4, 150)
    assert wishing.asked == [15.0, 75.0, 135.0]
    assert [counts[at] for at in (60.0, 75.0, 90.0, 105.0)] == [4, 8, 16, 30]


def test_a_lower_wish_waits_for_five_minutes() -> None:
    counts = play_wishes(Wishing({70.0: 20, 1e9: 5}), 20, 600)
    assert counts[345.0] == 20
    assert counts[375.0] == 5
