"""The largest request rate that one replica carries within every objective.

A replica at rate λ with I prompt and O generated tokens a request: a step of n sequences also prefills
the λ·I·T tokens that arrive during it, and Little's law gives n = λ·O·T. With T = α + β·tokens +
γ·context this closes to T = α / (1 - ρ), where ρ = λ·(β·I + O·(β + γ·(I + O/2))) is the part of the
time that is work rather than the step's fixed cost. Time to first token is the rest of the
running step, prefill behind other prompts, and the wait for a slot where sequences are limited.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass

from millrace_operator.autoscale.latency_model import LatencyModel
from millrace_operator.autoscale.policy import Objective

NEARLY_ALL = 0.98
"""No queue is planned fuller than this."""
LEAST_DOUBT = 0.05
"""The part of a target by which an idle replica must miss it before it is called out of reach."""
TAIL_OF_STEP = 0.1
"""Steps are nearly regular: a percentile lies above the mean by this times the exponential's."""


@dataclass(frozen=True)
class Replica:
    """One replica serving requests of a mean shape."""

    model: LatencyModel
    prompt_tokens: float
    generation_tokens: float
    max_sequences: float | None = None

    @property
    def work_seconds(self) -> float:
        """Work of one request that no batching spares."""
        context = self.prompt_tokens + self.generation_tokens / 2
        decode = self.generation_tokens * (self.model.beta + self.model.gamma * context)
        return self.model.beta * self.prompt_tokens + decode

    @property
    def saturation_rate(self) -> float:
        """Requests per second beyond which the queue grows without bound."""
        rate = 1 / max(self.work_seconds, 1e-9)
        if self.max_sequences is None:
            return rate
        # n = λ·O·α / (1 - λ·w) reaches the slots at this rate.
        return self.max_sequences / (
            self.generation_tokens * self.model.alpha + self.max_sequences * max(self.work_seconds, 1e-9)
        )

    @property
    def lone_rate(self) -> float:
        """Requests per second at which a replica computes one sequence on average."""
        context = self.prompt_tokens + self.generation_tokens / 2
        return 1 / (self.generation_tokens * max(self.model.predict(1, context), 1e-9))

    def step_seconds(self, rate: float) -> float:
        """Mean step time at a rate under saturation."""
        idle = max(1 - rate * self.work_seconds, 1e-6)
        return max(self.model.alpha / idle, self.model.predict(1, self.prompt_tokens))

    def latency_seconds(self, objective: Objective, rate: float) -> float:
        """The objective's percentile at a rate under saturation."""
        tail = -math.log(1 - objective.percentile / 100)
        step = self.step_seconds(rate)
        if objective.metric == "TimePerOutputToken":
            return step * (1 + TAIL_OF_STEP * tail)
        prefill = self.model.beta * self.prompt_tokens
        return step * (1.5 + TAIL_OF_STEP * tail) + prefill + tail * self._mean_wait(rate, prefill, step)

    def _mean_wait(self, rate: float, prefill: float, step: float) -> float:
        behind_prompts = rate * prefill * prefill / (2 * max(1 - rate * prefill, 1e-6))
        if self.max_sequences is None:
            return behind_prompts
        load = min(rate / self.saturation_rate, 1 - 1e-6)
        service = self.generation_tokens * step / self.max_sequences
        # Sakasegawa's approximation of M/M/k.
        return behind_prompts + math.pow(load, math.sqrt(2 * (self.max_sequences + 1))) * service / (1 - load)


def limit_sequences(slots: float | None, kv_tokens: float | None, context: float) -> float | None:
    """Return how many sequences of a mean context one replica holds: as its slots and KV cache allow.

    None where neither is known.
    """
    known = [] if slots is None else [slots]
    if kv_tokens is not None:
        known.append(max(kv_tokens / max(context, 1.0), 1.0))
    return min(known, default=None)


@dataclass(frozen=True)
class Capacity:
    """Requests per second of one replica, what limits it, and objectives out of reach."""

    rate: float
    limit: str
    infeasible: tuple[str, ...] = ()


def find_capacity(
    replica: Replica, objectives: tuple[Objective, ...], known_infeasible: Collection[str] = ()
) -> Capacity:
    """The rate at which the first objective would be missed, or the replica saturates.

    Objectives that an idle replica misses are named and left out: more replicas would not help. Nor would
    more replicas than sequences, so a rate is at least that of one sequence. `known_infeasible` names
    the objectives that were out of reach so far.
    """
    best = Capacity(NEARLY_ALL * replica.saturation_rate, "saturation")
    infeasible = []
    for objective in objectives:
        if _is_out_of_reach(replica, objective, was_so=objective.name in known_infeasible):
            infeasible.append(objective.name)
            continue
        rate = max(_bisect(replica, objective, best.rate), replica.lone_rate)
        if rate < best.rate:
            best = Capacity(rate, objective.name)
    return Capacity(best.rate, best.limit, tuple(infeasible))


def _is_out_of_reach(replica: Replica, objective: Objective, *, was_so: bool) -> bool:
    """Judge by more than what the model may err, and keep the judgement until an idle replica is in time."""
    doubt = 0.0 if was_so else max(LEAST_DOUBT, replica.model.relative_error or 0.0)
    return replica.latency_seconds(objective, 0.0) > (1 + doubt) * objective.target_seconds


def _bisect(replica: Replica, objective: Objective, high: float) -> float:
    """The largest rate up to high within the objective; latency grows with the rate."""
    if replica.latency_seconds(objective, high) <= objective.target_seconds:
        return high
    low = 0.0
    for _ in range(40):
        middle = (low + high) / 2
        if replica.latency_seconds(objective, middle) <= objective.target_seconds:
            low = middle
        else:
            high = middle
    return low
