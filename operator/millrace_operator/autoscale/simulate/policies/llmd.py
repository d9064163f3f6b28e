"""llm-d's guide to autoscaling by objectives with KEDA: P90 latencies in units of their targets.

Every 15 s. The larger of both latencies counts, each at most twice its target, on average over 45 s. Above
the upper threshold the count rises, below the lower one it falls, and in between it stays. Replicas that
start count as serving. The guide's text gives thresholds, and the count here follows from them as KEDA's
does: in proportion, to the middle of both.
"""

import math
from collections import deque

from millrace_operator.autoscale.observation import Signals
from millrace_operator.autoscale.policy import Objective
from millrace_operator.autoscale.simulate.policies.bounds import Bounds, check_knob
from millrace_operator.autoscale.simulate.run import Choice
from millrace_operator.autoscale.windows import DEFAULT_WINDOWS, Windows

WATCHED_PERCENTILE = 90
AVERAGED_LOOKS = 3
MOST_OF_TARGET = 2.0
DOWN_PER_UP = 0.40 / 0.55
UP_PERIOD_SECONDS = 60.0
DOWN_PERIOD_SECONDS = 120.0


def watch(objectives: tuple[Objective, ...]) -> tuple[Objective, ...]:
    """Return what it asks Prometheus for: the targets at another percentile."""
    return tuple(Objective(each.metric, WATCHED_PERCENTILE, each.target_seconds) for each in objectives)


class LlmD:
    """Follows latencies; `up` is the upper threshold."""

    tick_seconds = 15.0

    def __init__(self, bounds: Bounds, up: float = 0.55, windows: Windows = DEFAULT_WINDOWS) -> None:
        check_knob("up", up)
        self.windows = windows
        self._bounds = bounds
        self._up = up
        self._down = DOWN_PER_UP * up
        self._seen: deque[float] = deque(maxlen=AVERAGED_LOOKS)
        self._rises: list[tuple[float, int]] = []
        self._lowered_at = float("-inf")

    def choose(self, signals: Signals, now: float) -> Choice:
        """Hold where no latency is known."""
        shares = [each.seconds / each.objective.target_seconds for each in signals.latencies]
        if not shares:
            return Choice(signals.fleet.current, "no metric")
        self._seen.append(min(MOST_OF_TARGET, max(shares)))
        load = sum(self._seen) / len(self._seen) * len(signals.fleet.ready) / signals.fleet.current
        return Choice(self._count(signals.fleet.current, load, now), f"{load:.2f} of the targets")

    def _count(self, current: int, load: float, now: float) -> int:
        wanted = self._bounds.clamp(math.ceil(current * 2 * load / (self._up + self._down)))
        if load > self._up and wanted > current:
            return self._raise(current, wanted, now)
        if load < self._down and wanted < current and now - self._lowered_at >= DOWN_PERIOD_SECONDS:
            self._lowered_at = now
            return current - 1
        return self._bounds.clamp(current)

    def _raise(self, current: int, wanted: int, now: float) -> int:
        self._rises = [(at, step) for at, step in self._rises if at > now - UP_PERIOD_SECONDS]
        base = current - sum(step for _, step in self._rises)
        raised = max(current, min(wanted, max(2 * base, base + 4)))
        self._rises.append((now, raised - current))
        return raised
