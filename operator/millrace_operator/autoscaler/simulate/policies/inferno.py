"""The queue model of llm-d's Workload Variant Autoscaler, called inferno: M/M/1/K with a rate by state.

Every 60 s. T(n) = α + n·(β·t_c + γ·t_m) with t_c = (I + O) / (O + 1) and t_m = I + O/2. In a batch of n
requests prefill takes T(n) + (β + γ)·I, a token T(n) + β + γ·t_m, and n requests end per prefill + O·token.
Up to eleven batches fit in the system. λ* is the largest rate at which the mean latencies meet the targets,
by bisection, and the count is λ / λ*.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from millrace_operator.autoscaler.capacity.latency_model import LatencyModel
from millrace_operator.autoscaler.decide.policy import Objective
from millrace_operator.autoscaler.signals.observation import Signals
from millrace_operator.autoscaler.signals.windows import DEFAULT_WINDOWS, Windows
from millrace_operator.autoscaler.simulate.policies.bounds import Bounds, check_knob
from millrace_operator.autoscaler.simulate.policies.fit import Fit
from millrace_operator.autoscaler.simulate.run import Choice

BATCHES_IN_SYSTEM = 11
NEARLY_ALL = 0.999
BISECTIONS = 30


class Means(NamedTuple):
    """Mean latencies, in seconds."""

    first_token: float
    output_token: float

    def meet(self, objectives: tuple[Objective, ...]) -> bool:
        """Whether they are within the targets that it knows; the percentiles are not looked at."""
        known = {"TimeToFirstToken": self.first_token, "TimePerOutputToken": self.output_token}
        return all(known.get(each.metric, 0.0) <= each.target_seconds for each in objectives)


@dataclass(frozen=True)
class Queue:
    """One replica that serves requests of a mean shape."""

    model: LatencyModel
    prompt_tokens: float
    generation_tokens: float
    max_batch: int

    def prefill_seconds(self, batch: float) -> float:
        """Return what computing a prompt takes."""
        return self._step_seconds(batch) + (self.model.beta + self.model.gamma) * self.prompt_tokens

    def token_seconds(self, batch: float) -> float:
        """Return what one more token takes."""
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
    """Plans with a part of λ*, all of it by default."""

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
        """Hold until there is a model, and where the rate is unknown."""
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
    """Return how many sequences a replica's slots and KV cache hold."""
    slots = signals.max_sequences or 256.0
    held = (signals.kv_tokens or math.inf) / max(context, 1.0)
    return max(1, int(min(slots, held)))
