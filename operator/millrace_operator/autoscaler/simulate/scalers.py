"""Who decides in a simulation: our autoscaler, and a count that never changes."""

from dataclasses import dataclass, replace

from millrace_operator.autoscaler.decide.decide import decide
from millrace_operator.autoscaler.decide.decision import Decision
from millrace_operator.autoscaler.decide.memory import Memory
from millrace_operator.autoscaler.decide.policy import Policy
from millrace_operator.autoscaler.signals.observation import Signals
from millrace_operator.autoscaler.signals.windows import DEFAULT_WINDOWS, Windows, fit_windows
from millrace_operator.autoscaler.simulate.run import Choice


class Ours:
    """What the operator runs: the same `decide`, with the same policy."""

    def __init__(self, policy: Policy, memory: Memory | None = None) -> None:
        self.tick_seconds = policy.tick_seconds
        self.policy = policy
        self.memory = memory or Memory()
        self.decision: Decision | None = None

    @property
    def windows(self) -> Windows:
        """As long as the scrapes of the replicas ask for."""
        return fit_windows(self.memory.cadence.interval_seconds)

    def choose(self, signals: Signals, now: float) -> Choice:
        """Decide."""
        policy = replace(self.policy, windows=self.windows)
        self.decision, self.memory = decide(policy, signals, self.memory, now)
        return Choice(self.decision.desired, self.decision.message)


@dataclass(frozen=True)
class Static:
    """As many replicas as the peak needs, always."""

    replicas: int
    tick_seconds: float = 15.0
    windows: Windows = DEFAULT_WINDOWS

    def choose(self, signals: Signals, now: float) -> Choice:
        """Keep the count."""
        del signals, now
        return Choice(self.replicas, "static")
