"""Replicas in virtual time: batches under the step-time equation, cold starts, drains.

Fluid within a tick of 0.1 s: sequences progress at the speed of their replica's present step time. What it
reports is what the signals of a real service are: rates, queues, latencies, step moments.
"""

import random
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from millrace_operator.autoscale.observation import Latency, Signals, StepMoments
from millrace_operator.autoscale.policy import Objective

RESOLUTION_SECONDS = 0.1
STEP_WINDOW_SECONDS = 20.0
"""Of busy ticks; idle ones have no steps."""


@dataclass(frozen=True)
class Hardware:
    """The truth that the autoscaler has to learn."""

    alpha: float = 0.02
    beta: float = 0.002
    gamma: float = 2e-6
    max_sequences: int = 16
    cold_start_seconds: float = 6.0
    prompt_tokens: float = 40.0
    generation_tokens: float = 40.0


@dataclass
class _Sequence:
    arrived_at: float
    tokens_left: float


@dataclass
class _Replica:
    name: str
    ready_at: float
    waiting: list[_Sequence] = field(default_factory=list)
    running: list[_Sequence] = field(default_factory=list)
    steps: deque[StepMoments] = field(default_factory=deque)
    """Of each tick of the last window."""
    is_draining: bool = False

    @property
    def num_requests(self) -> int:
        return len(self.waiting) + len(self.running)


class Fleet:
    """A service's replicas; requests go to the one with the fewest."""

    def __init__(self, hardware: Hardware, replicas: int, seed: int) -> None:
        self.now = 0.0
        self.num_finished = 0
        self._hardware = hardware
        self._rng = random.Random(seed)  # noqa: S311  a simulation
        self._replicas: list[_Replica] = []
        self._num_created = 0
        self._arrivals: list[float] = []
        self._first_tokens: list[tuple[float, float]] = []
        for _ in range(replicas):
            self._create(0.0)

    @property
    def num_replicas(self) -> int:
        """Replicas that exist and are not draining."""
        return sum(not replica.is_draining for replica in self._replicas)

    def scale(self, replicas: int) -> None:
        """Create replicas, or drain the idlest."""
        while self.num_replicas < replicas:
            self._create(self.now + self._hardware.cold_start_seconds)
        while self.num_replicas > replicas:
            active = [replica for replica in self._replicas if not replica.is_draining]
            min(
                active, key=lambda replica: (replica.ready_at <= self.now, replica.num_requests)
            ).is_draining = True

    def advance(self, seconds: float, rate: float) -> None:
        """Let time pass with Poisson arrivals at a rate."""
        for _ in range(round(seconds / RESOLUTION_SECONDS)):
            self.now += RESOLUTION_SECONDS
            self._admit(rate)
            for replica in self._replicas:
                if replica.ready_at <= self.now:
                    self._run(replica)
            self._replicas = [r for r in self._replicas if not (r.is_draining and r.num_requests == 0)]

    def observe(self, objectives: tuple[Objective, ...], window: float = 20.0) -> Signals:
        """What Prometheus would say."""
        alive = [replica for replica in self._replicas if not replica.is_draining]
        ready = [replica for replica in alive if replica.ready_at <= self.now]
        serving = [replica for replica in self._replicas if replica.ready_at <= self.now]
        return Signals(
            replicas=len(alive),
            ready_replicas=len(ready),
            reporting_replicas=len(ready),
            arrivals_per_second=self._rate(3 * window),
            recent_arrivals_per_second=self._rate(window),
            waiting=float(sum(len(replica.waiting) for replica in serving)),
            running=float(sum(len(replica.running) for replica in serving)),
            prompt_tokens=self._hardware.prompt_tokens,
            generation_tokens=self._hardware.generation_tokens,
            cold_starts={replica.name: self._hardware.cold_start_seconds for replica in ready},
            latencies=tuple(
                self._measure(objective, window) for objective in objectives if self._recent(window)
            ),
            steps=tuple(_average(replica.steps) for replica in ready if replica.steps),
            pods=frozenset(replica.name for replica in ready),
        )

    def time_to_first_token(self, percentile: int, window: float) -> float | None:
        """The percentile over first tokens of the last window; None without any."""
        recent = sorted(self._recent(window))
        return recent[min(int(len(recent) * percentile / 100), len(recent) - 1)] if recent else None

    def _create(self, ready_at: float) -> None:
        self._replicas.append(_Replica(f"pod-{self._num_created}", ready_at))
        self._num_created += 1

    def _rate(self, window: float) -> float:
        since = self.now - window
        return sum(at > since for at in self._arrivals) / min(window, max(self.now, 1.0))

    def _recent(self, window: float) -> list[float]:
        return [seconds for at, seconds in self._first_tokens if at > self.now - window]

    def _measure(self, objective: Objective, window: float) -> Latency:
        if objective.metric == "TimeToFirstToken":
            seconds = self.time_to_first_token(objective.percentile, window) or 0.0
        else:
            seconds = max((r.steps[-1].seconds for r in self._replicas if r.steps), default=0.0)
        return Latency(objective, seconds, float(len(self._recent(window))))

    def _admit(self, rate: float) -> None:
        horizon = self._rng.expovariate(rate) if rate > 0 else RESOLUTION_SECONDS
        while horizon < RESOLUTION_SECONDS:
            self._arrivals.append(self.now)
            ready = [r for r in self._replicas if r.ready_at <= self.now and not r.is_draining]
            target = min(ready, key=lambda replica: replica.num_requests)
            target.waiting.append(_Sequence(self.now, self._hardware.generation_tokens))
            horizon += self._rng.expovariate(rate)

    def _run(self, replica: _Replica) -> None:
        hardware = self._hardware
        started = 0
        while replica.waiting and len(replica.running) < hardware.max_sequences:
            sequence = replica.waiting.pop(0)
            replica.running.append(sequence)
            started += 1
            step = hardware.alpha + hardware.beta * (len(replica.running) + started * hardware.prompt_tokens)
            self._first_tokens.append((self.now, self.now - sequence.arrived_at + step))
        if replica.running:
            self._step(replica, started)

    def _step(self, replica: _Replica, started: int) -> None:
        """A tick's steps: fixed work for the prompts first, decoding in what time is left."""
        hardware, batch = self._hardware, len(replica.running)
        context = batch * (hardware.prompt_tokens + hardware.generation_tokens / 2)
        decode = hardware.alpha + hardware.beta * batch + hardware.gamma * context
        prefill = hardware.beta * hardware.prompt_tokens * started
        progress = (RESOLUTION_SECONDS - prefill) / decode
        for sequence in replica.running:
            sequence.tokens_left -= progress
        num_steps = max(progress, 0.1)
        tokens = batch + started * hardware.prompt_tokens / num_steps
        seconds = hardware.alpha + hardware.beta * tokens + hardware.gamma * context
        noisy = seconds * self._rng.uniform(0.95, 1.05)
        replica.steps.append(StepMoments(replica.name, noisy, batch, tokens, context, num_steps))
        if len(replica.steps) > STEP_WINDOW_SECONDS / RESOLUTION_SECONDS:
            replica.steps.popleft()
        left = [sequence for sequence in replica.running if sequence.tokens_left > 0]
        self.num_finished += batch - len(left)
        replica.running = left


def _average(steps: Collection[StepMoments]) -> StepMoments:
    """Return the means over all steps, as a histogram's sum and count give them."""
    count = sum(moments.num_steps for moments in steps)

    def mean(name: str) -> float:
        return sum(float(getattr(moments, name)) * moments.num_steps for moments in steps) / count

    return StepMoments(
        next(iter(steps)).pod,
        mean("seconds"),
        mean("sequences"),
        mean("tokens"),
        mean("context_tokens"),
        count,
    )
