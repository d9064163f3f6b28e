"""All that one tick's decision rests on, gathered before anything is decided."""

from dataclasses import dataclass

from millrace_operator.autoscale.capacity import Capacity
from millrace_operator.autoscale.memory import Memory
from millrace_operator.autoscale.observation import Signals
from millrace_operator.autoscale.policy import Policy


@dataclass(frozen=True)
class Estimate:
    """What the model says of the present load."""

    rate: float | None
    forecast: float | None
    capacity: Capacity | None
    per_replica: float | None
    """Requests per second planned for one replica."""
    violated: tuple[str, ...] = ()
    """Objectives missed as measured."""


@dataclass(frozen=True)
class Situation:
    """One tick: what is asked, seen, remembered and estimated."""

    policy: Policy
    signals: Signals
    memory: Memory
    estimate: Estimate
    now: float

    @property
    def current(self) -> int:
        """The count decided last."""
        desired = self.memory.desired
        return self.signals.replicas if desired is None else desired

    @property
    def is_informed(self) -> bool:
        """Whether load and queue are known."""
        signals = self.signals
        known = (signals.arrival_rate, signals.waiting, signals.running)
        return None not in known and signals.reporting_replicas > 0

    @property
    def missed(self) -> tuple[str, ...]:
        """Objectives missed as measured, but for those that more replicas could not meet."""
        capacity = self.estimate.capacity
        infeasible = capacity.infeasible if capacity else ()
        return tuple(name for name in self.estimate.violated if name not in infeasible)

    @property
    def is_settled(self) -> bool:
        """Whether the present replicas have all served for as long as a measured percentile looks back."""
        since = self.memory.settled_since
        return since is not None and self.now - since >= self.policy.windows.latency

    @property
    def is_idle(self) -> bool:
        """Whether nothing arrives and nothing is in flight, as far as known: unknown is not idle."""
        signals = self.signals
        return signals.arrival_rate == 0 and signals.running == 0 and signals.waiting == 0

    def bound(self, replicas: int) -> int:
        """The count within min and max."""
        return min(max(replicas, self.policy.min_replicas), self.policy.max_replicas)
