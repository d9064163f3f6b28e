"""What was seen of a service at one moment. None means unknown, which is never read as zero."""

from dataclasses import dataclass, field

from millrace_operator.autoscale.policy import Objective

MIN_LATENCY_SAMPLES = 3.0
"""Times 1/(1-q): fewer requests say nothing about a quantile."""


@dataclass(frozen=True)
class StepMoments:
    """Means over one replica's steps in a window."""

    pod: str
    seconds: float
    sequences: float
    tokens: float
    """Tokens computed in a step: one a decoding sequence, and the prefilled ones."""
    context_tokens: float
    """KV tokens read in a step, over all its sequences."""
    num_steps: float


@dataclass(frozen=True)
class Latency:
    """An objective's percentile as measured, and from how many requests."""

    objective: Objective
    seconds: float
    num_samples: float

    @property
    def is_known(self) -> bool:
        """Whether there are requests enough to speak of: a quantile q takes 3/(1-q) of them."""
        return self.num_samples >= MIN_LATENCY_SAMPLES / (1 - self.objective.percentile / 100)

    @property
    def is_missed(self) -> bool:
        """Whether the objective is known to be missed."""
        return self.is_known and self.seconds > self.objective.target_seconds


@dataclass(frozen=True)
class Signals:
    """One observation of a service."""

    replicas: int
    """Pods that exist, ready or not."""
    ready_replicas: int
    reporting_replicas: int = 0
    """Replicas with fresh samples."""
    arrivals_per_second: float | None = None
    """Over the long window."""
    recent_arrivals_per_second: float | None = None
    """Over the short window."""
    waiting: float | None = None
    """Requests queued in replicas, summed."""
    running: float | None = None
    """Sequences in batches, summed."""
    in_flight: dict[str, float] = field(default_factory=dict)
    """Requests running or waiting, by pod."""
    kv_usage: float | None = None
    """Mean over replicas, 0 to 1."""
    prompt_tokens: float | None = None
    """Mean per finished request."""
    generation_tokens: float | None = None
    """Mean per finished request."""
    max_sequences: float | None = None
    """Sequences that a step of a replica computes at most."""
    kv_tokens: float | None = None
    """Tokens that a replica's KV cache holds."""
    cold_starts: dict[str, float] = field(default_factory=dict)
    """Seconds from a pod's creation until it was Ready, by pod."""
    latencies: tuple[Latency, ...] = ()
    steps: tuple[StepMoments, ...] = ()
    pods: frozenset[str] = frozenset()
    sampled_at: dict[str, float] = field(default_factory=dict)
    """When the newest sample of each replica was taken, in seconds since 1970, old ones too."""
    rejected: dict[str, str] = field(default_factory=dict)
    """Signals that are unknown, with the reason."""

    @property
    def arrival_rate(self) -> float | None:
        """Requests per second: the larger of both windows, or the known one."""
        known = [r for r in (self.arrivals_per_second, self.recent_arrivals_per_second) if r is not None]
        return max(known, default=None)
