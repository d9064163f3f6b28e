"""llm-d's guide to autoscaling by objectives with KEDA: P90 latencies in units of their targets.

Every 15 s. The signal s is the larger of both latencies over its target, 0 where there is none, at most 2, on
average over 45 s. Of n replicas r serve. Above the upper threshold it wants n + ⌈n (s·c / up - 1)⌉,
where c = r/n credits those that start; below the lower one it is n - ⌊n (1 - s / down)⌋, and in between n. As
the credit is for the way up alone, it lowers nothing here. An HPA follows: up after 30 s by at most twice the
count or four a minute, down after 180 s by one in two minutes.
"""

import math
from collections import deque

from millrace_operator.autoscaler.decide.policy import Objective
from millrace_operator.autoscaler.signals.observation import Signals
from millrace_operator.autoscaler.signals.reading import EVERYTHING
from millrace_operator.autoscaler.signals.windows import DEFAULT_WINDOWS, Windows
from millrace_operator.autoscaler.simulate.policies.behaviour import Behaviour, Rules, recommend_by_total
from millrace_operator.autoscaler.simulate.policies.bounds import Bounds, check_knob
from millrace_operator.autoscaler.simulate.policies.hpa import SYNC_SECONDS
from millrace_operator.autoscaler.simulate.run import Choice

WATCHED_PERCENTILE = 90
AVERAGED_LOOKS = 3
MOST_OF_TARGET = 2.0
DOWN_PER_UP = 0.40 / 0.55
RULES = Rules(up_window=30.0, down_window=180.0, up_period=60.0, down_pods=1, down_period=120.0)


def watch(objectives: tuple[Objective, ...]) -> tuple[Objective, ...]:
    """Return what it asks Prometheus for: the targets at another percentile."""
    return tuple(Objective(each.metric, WATCHED_PERCENTILE, each.target_seconds) for each in objectives)


class LlmD:
    """Follows latencies; `up` is the upper threshold."""

    tick_seconds = SYNC_SECONDS

    def __init__(self, bounds: Bounds, up: float = 0.55, windows: Windows = DEFAULT_WINDOWS) -> None:
        check_knob("up", up)
        self.windows = windows
        self._up = up
        self._down = DOWN_PER_UP * up
        self._seen: deque[float] = deque(maxlen=AVERAGED_LOOKS)
        self._behaviour = Behaviour(bounds, RULES)

    def choose(self, signals: Signals, now: float) -> Choice:
        """Take a latency that nobody has measured for 0, as its rules do; hold where the query failed."""
        current = signals.fleet.current
        if EVERYTHING in signals.rejected:
            return Choice(current, "the query failed")
        shares = [each.seconds / each.objective.target_seconds for each in signals.latencies]
        self._seen.append(min(MOST_OF_TARGET, max(shares, default=0.0)))
        load = sum(self._seen) / len(self._seen)
        wanted = recommend_by_total(self._want(current, len(signals.fleet.ready), load), current, 1.0)
        return Choice(self._behaviour.follow(current, wanted, now), f"{load:.2f} of the targets")

    def _want(self, current: int, ready: int, load: float) -> int:
        if load > self._up:
            credit = ready / current if 0 < ready < current else 1.0
            return current + max(math.ceil(current * (load * credit / self._up - 1)), 0)
        if load < self._down:
            return current - math.floor(current * (1 - load / self._down))
        return current
