"""The autoscaler's policy: the objectives to keep, the bounds, and the pace. Frozen; parsed elsewhere."""

from dataclasses import dataclass
from typing import Literal

from millrace_operator.autoscaler.signals.scrapes import DEFAULT_WINDOWS, Windows

LatencyMetric = Literal["TimeToFirstToken", "TimePerOutputToken", "EndToEndLatency", "QueueTime"]
OF_ANSWERS: frozenset[LatencyMetric] = frozenset({"TimePerOutputToken", "EndToEndLatency"})
"""The metrics that a request has only when its answer has ended."""

DEFAULT_PERCENTILE = 95
"""Without objectives slots, KV cache and time suffice in this percentage of the time."""


class PolicyError(ValueError):
    """A policy that nobody can keep; the text says what to write."""


@dataclass(frozen=True)
class Objective:
    """A percentile of a latency and its target: it has to stay at or under the target."""

    metric: LatencyMetric
    percentile: int
    target_seconds: float

    def __post_init__(self) -> None:
        if not 0 < self.percentile < 100:
            raise PolicyError(f"percentile is {self.percentile}; write a whole number from 1 to 99")
        if self.target_seconds <= 0:
            raise PolicyError(f"the target of {self.metric} is {self.target_seconds} s; write more than 0")

    @property
    def name(self) -> str:
        """Short name for messages, e.g. "P95 TimeToFirstToken"."""
        return f"P{self.percentile} {self.metric}"


@dataclass(frozen=True)
class Policy:
    """Bounds, objectives and pace of one service."""

    min_replicas: int
    max_replicas: int
    objectives: tuple[Objective, ...] = ()
    tick_seconds: float = 2.0
    """How often `decide` is called."""
    max_sequences: int | None = None
    """The largest batch of a replica; None: the one that the replica itself reports."""
    drain_seconds: float = 20.0
    """Within this time the replicas should serve the waiting queue."""
    cold_start_seconds: float = 30.0
    """From decision to a serving replica, until one has been measured."""
    windows: Windows = DEFAULT_WINDOWS
    """How far back the signals look."""
    warm_up_seconds: float = 20.0
    """The model does not learn from steps in a replica's first seconds."""
    scale_down_window_seconds: float = 180.0
    """A scale-down goes only as low as every moment of this time allowed."""
    scale_down_interval_seconds: float = 15.0
    """Between two steps down."""
    dead_band: float = 0.2
    """After a step down the replicas must fit so much more than the expected load."""

    @property
    def highest_percentile(self) -> int:
        """The percentile of the strictest objective: the reserve follows it."""
        return max((objective.percentile for objective in self.objectives), default=DEFAULT_PERCENTILE)

    def __post_init__(self) -> None:
        if self.min_replicas < 1:
            raise PolicyError(f"min_replicas is {self.min_replicas}; write 1 or more")
        if self.max_replicas < self.min_replicas:
            raise PolicyError(
                f"max_replicas is {self.max_replicas}; write {self.min_replicas} (min_replicas) or more"
            )
