"""NVIDIA Dynamo's planner in its two modes, throughput and load, for replicas that do prefill and decode."""

import math
from dataclasses import replace

from millrace_operator.autoscaler.capacity.latency_model import LatencyModel
from millrace_operator.autoscaler.decide.policy import LatencyMetric, Objective
from millrace_operator.autoscaler.signals.observation import Signals, StepMoments
from millrace_operator.autoscaler.signals.scrapes import DEFAULT_WINDOWS, Windows
from millrace_operator.autoscaler.simulate.hardware import Hardware
from millrace_operator.autoscaler.simulate.policies.hpa import Bounds, check_knob
from millrace_operator.autoscaler.simulate.run import Choice

INTERVAL_SECONDS = 180.0
SENSITIVITY = 0.8
"""Its default of `load_scaling_down_sensitivity`."""


class Fit:
    """The step time that a rule with a model learns, and the last known shape of a request.

    It is our own fit, of the same formula as theirs, in the place of their Kalman filters and regressions,
    which see latencies only. Ours sees steps, so their rules do no worse with it.
    """

    def __init__(self, windows: Windows, tick_seconds: float) -> None:
        self.model = LatencyModel()
        self.prompt_tokens: float | None = None
        self.generation_tokens: float | None = None
        self._weight = min(1.0, tick_seconds / windows.recent)

    def learn(self, signals: Signals) -> None:
        """Learn from every replica's steps."""
        for moments in signals.steps:
            self.model = self.model.learn(moments, weight=self._weight)
        self.prompt_tokens = signals.prompt_tokens or self.prompt_tokens
        self.generation_tokens = signals.generation_tokens or self.generation_tokens


def find_target(objectives: tuple[Objective, ...], metric: LatencyMetric) -> float:
    """Return the target of a latency; infinity where there is none."""
    return min((each.target_seconds for each in objectives if each.metric == metric), default=math.inf)


class DynamoThroughput:
    """Throughput mode, every 180 s, for the last interval's load: its predictor `constant`.

    A replica's profile says what it computes: prompts at full speed, and tokens in the largest batch that
    keeps the target per token at the mean context. The profile is the true hardware, as a measurement before
    deployment has it. The target per token is divided by how much slower steps are than the profile says.
    Both needs are added, because one replica does both. The load is multiplied by a factor that Dynamo lacks:
    without one there is nothing to tune.
    """

    tick_seconds = INTERVAL_SECONDS

    def __init__(
        self,
        bounds: Bounds,
        objectives: tuple[Objective, ...],
        profile: Hardware,
        factor: float = 1.0,
        windows: Windows = DEFAULT_WINDOWS,
    ) -> None:
        check_knob("factor", factor)
        self.windows = replace(windows, rate=max(windows.rate, INTERVAL_SECONDS))
        self._bounds = bounds
        self._target = find_target(objectives, "TimePerOutputToken")
        self._profile = profile
        self._factor = factor

    def choose(self, signals: Signals, now: float) -> Choice:
        """Return the count for the last interval's load; hold where load or shape is unknown."""
        del now
        rate, prompt, generation = (
            signals.arrivals_per_second,
            signals.prompt_tokens,
            signals.generation_tokens,
        )
        if rate is None or not prompt or not generation:
            return Choice(signals.fleet.current, "no load known")
        prefill = rate * prompt / self._prefill_tokens_per_second(prompt)
        decode = rate * generation / self._decode_tokens_per_second(signals, prompt + generation / 2)
        wanted = self._bounds.clamp(math.ceil(self._factor * (prefill + decode)))
        return Choice(wanted, f"{prefill:.2f} for prompts and {decode:.2f} for tokens")

    def _prefill_tokens_per_second(self, prompt: float) -> float:
        chunk = min(prompt, self._profile.max_batched_tokens)
        return chunk / self._profile.step_seconds(chunk, prompt)

    def _decode_tokens_per_second(self, signals: Signals, context: float) -> float:
        most = max(1, int(min(self._profile.max_sequences, self._profile.kv_tokens / context)))
        target = self._target / self._correction(signals)
        batches = [n for n in range(1, most + 1) if self._profile.step_seconds(n, n * context) <= target]
        batch = max(batches, default=1)
        return batch / self._profile.step_seconds(batch, batch * context)

    def _correction(self, signals: Signals) -> float:
        """Return how much slower steps are than the profile says of their batches."""
        ratios = [
            each.seconds / self._profile.step_seconds(each.sequences, each.context_tokens)
            for each in signals.steps
        ]
        return sum(ratios) / len(ratios) if ratios else 1.0


class DynamoLoad:
    """Load mode, every 5 s: one replica more when every replica is beyond a target, or one less.

    One less when each of N would be in time with N/(N - 1) of its load: its cache holds it, a step takes less
    than 80 % of the target, and the queue less than 80 % of what the target of the first token leaves beside
    the own prompt. A replica's latencies follow from its steps and its queue. It knows the time to the first
    token and the time per token, and holds where neither has a target. It keeps a part of its targets:
    without that part there is nothing to tune but how it goes down.
    """

    tick_seconds = 5.0

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
        self._first = part * find_target(objectives, "TimeToFirstToken")
        self._token = part * find_target(objectives, "TimePerOutputToken")
        self._fit = Fit(windows, self.tick_seconds)

    def choose(self, signals: Signals, now: float) -> Choice:
        """Return the count; hold while replicas start, and where nothing is known."""
        del now
        self._fit.learn(signals)
        current = signals.fleet.current
        if math.isinf(self._first) and math.isinf(self._token):
            return Choice(current, "no target that it knows")
        if len(signals.fleet.ready) < current or not signals.steps:
            return Choice(current, "replicas start, or none computes")
        firsts = [self._find_first_token(signals, each) for each in signals.steps]
        is_late = min(firsts) > self._first or min(each.seconds for each in signals.steps) > self._token
        wanted = current
        if is_late:
            wanted += 1
        elif current > 1 and all(self._may_be_merged(signals, each) for each in signals.steps):
            wanted -= 1
        return Choice(
            self._bounds.clamp(wanted), f"{min(firsts):.3g} to {max(firsts):.3g} s to a first token"
        )

    def _find_first_token(self, signals: Signals, steps: StepMoments) -> float:
        """Return the wait of a new request at a replica: a step, the waiting prompts, and its own."""
        return steps.seconds + (self._count_waiting(signals) + 1) * self._prompt_seconds

    def _may_be_merged(self, signals: Signals, steps: StepMoments) -> bool:
        """Whether a replica would still be well in time with the part of one that goes."""
        more = signals.fleet.current / (signals.fleet.current - 1)
        if signals.kv_tokens is not None and more * steps.context_tokens >= signals.kv_tokens:
            return False
        token = self._fit.model.predict(more * steps.tokens, more * steps.context_tokens)
        budget = SENSITIVITY * (self._first - token - self._prompt_seconds)
        queued = more * self._count_waiting(signals) * self._prompt_seconds
        return self._fit.model.is_fitted and token < SENSITIVITY * self._token and queued < budget

    def _count_waiting(self, signals: Signals) -> float:
        return (signals.waiting or 0.0) / len(signals.fleet.ready)

    @property
    def _prompt_seconds(self) -> float:
        return self._fit.model.beta * (self._fit.prompt_tokens or 0.0)
