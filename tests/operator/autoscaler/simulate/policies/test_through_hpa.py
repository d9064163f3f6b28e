"""A controller that writes a metric, and the HPA that follows it."""

from dataclasses import dataclass, field

from millrace_operator.autoscaler.signals.observation import Signals
from millrace_operator.autoscaler.signals.scrapes import DEFAULT_WINDOWS, Windows
from millrace_operator.autoscaler.simulate.policies.hpa import Bounds, ThroughHpa
from millrace_operator.autoscaler.simulate.run import Choice
from tests.operator.autoscaler.made_signals import make_signals


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


def play(wishing: Wishing, count: int, seconds: float) -> dict[float, int]:
    scaler, counts = ThroughHpa(Bounds(1, 40), wishing), {}
    for tick in range(1, int(seconds / scaler.tick_seconds) + 1):
        now = tick * scaler.tick_seconds
        count = counts[now] = scaler.choose(make_signals(count, count), now).replicas
    return counts


def test_a_wish_is_asked_for_each_minute_and_followed_at_the_speed_of_an_hpa() -> None:
    wishing = Wishing({70.0: 4, 1e9: 30})
    counts = play(wishing, 4, 150)
    assert wishing.asked == [15.0, 75.0, 135.0]
    assert [counts[at] for at in (60.0, 75.0, 90.0, 105.0)] == [4, 8, 16, 30]


def test_a_lower_wish_waits_for_five_minutes() -> None:
    counts = play(Wishing({70.0: 20, 1e9: 5}), 20, 600)
    assert counts[345.0] == 20
    assert counts[375.0] == 5
