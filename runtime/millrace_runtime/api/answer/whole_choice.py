"""The choices of an answer in one piece. Each is the sum of its deltas."""

from collections.abc import Callable, Iterator

from millrace_runtime.api.answer.choice import Delta
from millrace_runtime.api.answer.logprobs import Logprobs


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
        """Append the choice's next delta."""
        self._texts.append(delta.text)
        self.logprobs.add(delta.positions)
        self.finish_reason = delta.finish_reason


class WholeChoices:
    """Collects all choices' deltas."""

    def __init__(self, open_logprobs: Callable[[], Logprobs]) -> None:
        self._open_logprobs = open_logprobs
        self._choices: dict[int, WholeChoice] = {}

    def add(self, delta: Delta) -> None:
        """Append a delta to the choice that it is of."""
        if delta.index not in self._choices:
            self._choices[delta.index] = WholeChoice(self._open_logprobs())
        self._choices[delta.index].add(delta)

    def __iter__(self) -> Iterator[tuple[int, WholeChoice]]:
        """Yield each index with its choice, in their order."""
        return iter(sorted(self._choices.items(), key=lambda item: item[0]))
