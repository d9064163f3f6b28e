"""What the autoscaler is asked to keep, and how carefully it moves. Frozen; parsed elsewhere."""

from dataclasses import dataclass
from typing import Literal

from millrace_operator.autoscaler.signals.scrapes import DEFAULT_WINDOWS, Windows

LatencyMetric = Literal["TimeToFirstToken", "TimePerOutputToken", "EndToEndLatency", "QueueTime"]
OF_ANSWERS: frozenset[LatencyMetric] = frozenset({"TimePerOutputToken", "EndToEndLatency"})
"""Known of a request when its answer has ended."""

DEFAULT_PERCENTILE = 95
"""Of the time there is enough of everything, where no objective says more."""


class PolicyError(ValueError):
    """A policy that cannot be kept; the text says what to write."""


@dataclass(frozen=True)
class Objective:
    """A percentile of a latency that is to stay at or under a target."""

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
    """Sequences that a replica batches at most; None: as many as the replica itself says."""
    drain_seconds: float = 20.0
    """The time within which the waiting queue is to be worked off."""
    cold_start_seconds: float = 30.0
    """From decision to a serving replica, until one has been measured."""
    windows: Windows = DEFAULT_WINDOWS
    """How far back the signals look."""
    warm_up_seconds: float = 20.0
    """A replica's first seconds, whose steps teach the model nothing."""
    scale_down_window_seconds: float = 180.0
    """Scale down only to what every moment of this long would have allowed."""
    scale_down_interval_seconds: float = 15.0
    """Between one step down and the next."""
    dead_band: float = 0.2
    """By how much more than the expected load must fit after a step down."""

    @property
    def highest_percentile(self) -> int:
        """The percentile of the strictest promise: what is kept in reserve follows it."""
        return max((objective.percentile for objective in self.objectives), default=DEFAULT_PERCENTILE)

    def __post_init__(self) -> None:
        if self.min_replicas < 1:
            raise PolicyError(f"min_replicas is {self.min_replicas}; write 1 or more")
        if self.max_replicas < self.min_replicas:
            raise PolicyError(
                f"max_replicas is {self.max_replicas}; write {self.min_replicas} (min_replicas) or more"
            )
