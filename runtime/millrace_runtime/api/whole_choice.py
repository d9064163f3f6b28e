"""A choice of an answer in one piece: the sum of its deltas."""

from millrace_runtime.api.choice import Delta
from millrace_runtime.api.logprobs import Logprobs


class WholeChoice:
    """Collects one choice's deltas."""

    def __init__(self, logprobs: Logprobs) -> None:
        self.logprobs = logprobs
        self.finish_reason: str | None = None
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._texts)

    def add(self, delta: Delta) -> None:
        """Take the choice's next delta."""
        self._texts.append(delta.text)
        self.logprobs.add(delta.positions)
        self.finish_reason = delta.finish_reason
