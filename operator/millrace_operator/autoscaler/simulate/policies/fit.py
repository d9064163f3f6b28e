"""The step time that peers with a model learn: our own fit, of the same formula as theirs.

It stands in for the Kalman filters and regressions of theirs, which see latencies only. Ours sees steps, so
they do no worse with it.
"""

from millrace_operator.autoscaler.capacity.latency_model import LatencyModel
from millrace_operator.autoscaler.signals.observation import Signals
from millrace_operator.autoscaler.signals.windows import Windows


class Fit:
    """A model, and the last known shape of a request."""

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
