"""llm-d's rules: latencies in units of their targets, and the two of its Workload Variant Autoscaler."""

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from millrace_operator.autoscaler.capacity.latency_model import LatencyModel
from millrace_operator.autoscaler.decide.policy import Objective
from millrace_operator.autoscaler.signals.observation import Signals
from millrace_operator.autoscaler.signals.reading import EVERYTHING
from millrace_operator.autoscaler.signals.scrapes import DEFAULT_WINDOWS, Windows
from millrace_operator.autoscaler.simulate.policies.dynamo import Fit
from millrace_operator.autoscaler.simulate.policies.hpa import (
    SYNC_SECONDS,
    Behaviour,
    Bounds,
    Rules,
    check_knob,
    recommend_by_total,
)
from millrace_operator.autoscaler.simulate.run import Choice

WATCHED_PERCENTILE = 90
AVERAGED_LOOKS = 3
MOST_OF_TARGET = 2.0
DOWN_PER_UP = 0.40 / 0.55
RULES = Rules(up_window=30.0, down_window=180.0, up_period=60.0, down_pods=1, down_period=120.0)
KV_LIMIT = 0.8
QUEUE_OF_SATURATION = 5.0
"""With so many waiting requests a replica, its cache holds as much as it can."""
SATURATION_DOWN_PER_UP = 0.70 / 0.85
SATURATIONS_KEPT = 10
BATCHES_IN_SYSTEM = 11
NEARLY_ALL = 0.999
BISECTIONS = 30


def watch(objectives: tuple[Objective, ...]) -> tuple[Objective, ...]:
    """Return the objectives that it reads: the targets at another percentile."""
    return tuple(Objective(each.metric, WATCHED_PERCENTILE, each.target_seconds) for each in objectives)


class LlmD:
    """llm-d's guide to autoscaling by objectives with KEDA; `up` is the upper threshold.

    Every 15 s. The signal s is the larger of the two P90 latencies over their targets, 0 where there is none,
    at most 2, on average over 45 s. Of n replicas r serve. Above the upper threshold it wants n + ⌈n (s·c /
    up - 1)⌉, where c = r/n credits those that start; below the lower one it is n - ⌊n (1 - s / down)⌋, and in
    between n. As the credit is for the way up alone, it lowers nothing here. An HPA follows: up after 30 s by
    at most twice the count or four a minute, down after 180 s by one in two minutes.
    """

    tick_seconds = SYNC_SECONDS

    def __init__(self, bounds: Bounds, up: float = 0.55, windows: Windows = DEFAULT_WINDOWS) -> None:
        check_knob("up", up)
        self.windows = windows
        self._up = up
        self._down = DOWN_PER_UP * up
        self._seen: deque[float] = deque(maxlen=AVERAGED_LOOKS)
        self._behaviour = Behaviour(bounds, RULES)

    def choose(self, signals: Signals, now: float) -> Choice:
        """Return the count; an unknown latency counts as 0, as in its rules. Hold if the query failed."""
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


class Wva:
    """The saturation rule, second version, of llm-d's Workload Variant Autoscaler: tokens in KV caches.

    Every 60 s. Demand is the tokens in KV caches, and those of the prompts that wait. A replica supplies the
    smaller of 80 % of its cache and of what it held when requests queued. Pods that start count as supply on
    the way up. It goes up above `up` of the supply, and down where the smaller fleet stays under the lower
    threshold.
    """

    tick_seconds = 60.0

    def __init__(self, bounds: Bounds, up: float = 0.85, windows: Windows = DEFAULT_WINDOWS) -> None:
        check_knob("up", up)
        self.windows = windows
        self._bounds = bounds
        self._up = up
        self._held: deque[float] = deque(maxlen=SATURATIONS_KEPT)

    def choose(self, signals: Signals, now: float) -> Choice:
        """Return the count; hold if a signal is missing."""
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
        spare = supply * len(signals.reporting) - demand / (self._up * SATURATION_DOWN_PER_UP)
        return signals.fleet.current - max(math.floor(spare / supply), 0)


class Means(NamedTuple):
    """Mean latencies, in seconds."""

    first_token: float
    output_token: float

    def meet(self, objectives: tuple[Objective, ...]) -> bool:
        """Whether they are within the targets of these two metrics; the rule ignores the percentiles."""
        known = {"TimeToFirstToken": self.first_token, "TimePerOutputToken": self.output_token}
        return all(known.get(each.metric, 0.0) <= each.target_seconds for each in objectives)


@dataclass(frozen=True)
class Queue:
    """One replica that serves requests of a mean shape, as an M/M/1/K queue with a rate by state.

    T(n) = α + n·(β·t_c + γ·t_m) with t_c = (I + O) / (O + 1) and t_m = I + O/2. In a batch of n requests
    prefill takes T(n) + (β + γ)·I, a token T(n) + β + γ·t_m, and n requests end per prefill + O·token. Up to
    eleven batches fit in the system.
    """

    model: LatencyModel
    prompt_tokens: float
    generation_tokens: float
    max_batch: int

    def prefill_seconds(self, batch: float) -> float:
        """Return the seconds of a prompt."""
        return self._step_seconds(batch) + (self.model.beta + self.model.gamma) * self.prompt_tokens

    def token_seconds(self, batch: float) -> float:
        """Return the seconds of one more token."""
        return self._step_seconds(batch) + self.model.beta + self.model.gamma * self._context

    def service_rate(self, batch: int) -> float:
        """Return the requests that end per second."""
        seconds = self.prefill_seconds(batch) + self.generation_tokens * self.token_seconds(batch)
        return batch / max(seconds, 1e-9)

    def find_means(self, rate: float) -> Means:
        """Return the mean latencies at a rate below that of a full batch."""
        weight = total = 1.0
        in_system = in_batch = 0.0
        for batch in range(1, self.max_batch + 1):
            weight *= rate / self.service_rate(batch)
            total += weight
            in_system += batch * weight
            in_batch += batch * weight
        ratio = rate / self.service_rate(self.max_batch)
        places = (BATCHES_IN_SYSTEM - 1) * self.max_batch
        queued = weight * ratio * (1 - ratio**places) / (1 - ratio)
        waiting = weight * ratio * _weigh(ratio, places)
        full = weight * ratio**places
        total, in_batch = total + queued, in_batch + self.max_batch * queued
        served = rate * (1 - full / total)
        batch_size = in_batch / total
        first = waiting / total / served + self.prefill_seconds(batch_size) + self.token_seconds(batch_size)
        return Means(first, self.token_seconds(batch_size))

    def find_rate(self, objectives: tuple[Objective, ...]) -> float:
        """Return the largest rate within the targets."""
        low, high = 0.0, NEARLY_ALL * self.service_rate(self.max_batch)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.find_means(middle).meet(objectives) else (low, middle)
        return low

    @property
    def _context(self) -> float:
        return self.prompt_tokens + self.generation_tokens / 2

    def _step_seconds(self, batch: float) -> float:
        computed = (self.prompt_tokens + self.generation_tokens) / (self.generation_tokens + 1)
        return self.model.alpha + batch * (self.model.beta * computed + self.model.gamma * self._context)


def _weigh(ratio: float, places: int) -> float:
    """Return the sum of j·ratio^(j-1) for j up to `places`."""
    power = ratio**places
    return (1 - (places + 1) * power + places * power * ratio) / (1 - ratio) ** 2


class Inferno:
    """The queue model of llm-d's Workload Variant Autoscaler, called inferno.

    Every 60 s. λ* is the largest rate at which the mean latencies meet the targets, by bisection. The count
    is the load over a part of λ*, by default all of it.
    """

    tick_seconds = 60.0

    def __init__(
        self,
        bounds: Bounds,
        objectives: tuple[Objective, ...],
        part: float = 1.0,
        windows: Windows = DEFAULT_WINDOWS,
    ) -> None:
        check_knob("part", part)
        self.windows = windows
        self._bounds = bounds
        self._objectives = objectives
        self._part = part
        self._fit = Fit(windows, self.tick_seconds)

    def choose(self, signals: Signals, now: float) -> Choice:
        """Return the count; hold until there is a model, and if the rate is unknown."""
        del now
        self._fit.learn(signals)
        prompt, generation = self._fit.prompt_tokens, self._fit.generation_tokens
        rate = signals.arrivals_per_second
        if rate is None or not self._fit.model.is_fitted or not prompt or not generation:
            return Choice(signals.fleet.current, "no model or no rate")
        batch = _find_batch(signals, prompt + generation / 2)
        most = Queue(self._fit.model, prompt, generation, batch).find_rate(self._objectives)
        if most <= 0:
            return Choice(signals.fleet.current, "the targets are out of reach")
        wanted = self._bounds.clamp(math.ceil(rate / (most * self._part)))
        return Choice(wanted, f"{rate:.2f}/s at {most:.2f}/s each")


def _find_batch(signals: Signals, context: float) -> int:
    """Return the sequences that a replica's slots and KV cache hold."""
    slots = signals.max_sequences or 256.0
    held = (signals.kv_tokens or math.inf) / max(context, 1.0)
    return max(1, int(min(slots, held)))
