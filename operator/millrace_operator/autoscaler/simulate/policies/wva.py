"""The saturation rule, second version, of llm-d's Workload Variant Autoscaler: tokens in KV caches.

Every 60 s. Demand is the tokens in KV caches, and those of the prompts that wait. A replica supplies the
smaller of 80 % of its cache and of what it held when requests queued. Pods that start count as supply on
the way up.
"""

import math
from collections import deque

from millrace_operator.autoscaler.signals.observation import Signals
from millrace_operator.autoscaler.signals.windows import DEFAULT_WINDOWS, Windows
from millrace_operator.autoscaler.simulate.policies.bounds import Bounds, check_knob
from millrace_operator.autoscaler.simulate.run import Choice

KV_LIMIT = 0.8
QUEUE_OF_SATURATION = 5.0
"""Waiting requests a replica, from which on its cache's content is what it can hold at most."""
DOWN_PER_UP = 0.70 / 0.85
SATURATIONS_KEPT = 10


class Wva:
    """Goes up above `up` of the supply, and down where the smaller fleet stays under the lower threshold."""

    tick_seconds = 60.0

    def __init__(self, bounds: Bounds, up: float = 0.85, windows: Windows = DEFAULT_WINDOWS) -> None:
        check_knob("up", up)
        self.windows = windows
        self._bounds = bounds
        self._up = up
        self._held: deque[float] = deque(maxlen=SATURATIONS_KEPT)

    def choose(self, signals: Signals, now: float) -> Choice:
        """Hold where a signal is missing."""
        del now
        usage, size, ready = signals.kv_usage, signals.kv_tokens, len(signals.reporting)
        if usage is None or not size or not ready:
            return Choice(signals.fleet.current, "no metric")
        waiting = signals.waiting or 0.0
        if waiting / ready >= QUEUE_OF_SATURATION and usage > 0:
            self._held.append(usage * size)
        supply = min([KV_LIMIT * size, *([sum(self._held) / len(self._held)] if self._held else [])])
        demand = usage * size * ready + waiting * (signals.prompt_tokens or 0.0)
        return Choice(self._bounds.clamp(self._count(signals, demand, supply)), f"{demand:.0f} tokens")

    def _count(self, signals: Signals, demand: float, supply: float) -> int:
        need = demand / self._up - supply * signals.fleet.current
        if need > 0:
            return signals.fleet.current + math.ceil(need / supply)
        spare = supply * len(signals.reporting) - demand / (self._up * DOWN_PER_UP)
        return signals.fleet.current - max(math.floor(spare / supply), 0)
