"""What a model's answer is split into, piece by piece."""

from collections.abc import Iterable
from typing import NamedTuple, Protocol


class CallDelta(NamedTuple):
    """The next piece of a tool call."""

    index: int  # type: ignore[assignment]  # a tuple's method of this name is not needed
    """Which call of the answer, from 0."""
    name: str | None
    """The function's name, once: with the call's first delta."""
    arguments: str
    """The next piece of the arguments' JSON text. Joined they are one JSON object."""
    call_id: str | None = None
    """The id that the model gave the call, with its first delta; None if its format has none."""


class AnswerDelta(NamedTuple):
    """What a piece of text adds to the answer."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[CallDelta, ...] = ()


class AnswerParser(Protocol):
    """Splits one answer. The sum of its deltas does not depend on where the text is cut."""

    def feed(self, text: str) -> AnswerDelta:
        """Return what is certain with the next piece of text."""

    def finish(self) -> AnswerDelta:
        """Return what was held back, as the answer has ended."""


class PlainParser:
    """Takes all text for content."""

    def feed(self, text: str) -> AnswerDelta:
        """Return the text."""
        return AnswerDelta(content=text)

    def finish(self) -> AnswerDelta:
        """Return nothing: no text is held back."""
        return AnswerDelta()


class DeltaBuilder:
    """Collects the next delta of an answer."""

    def __init__(self) -> None:
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[tuple[int, str | None, str | None, list[str]]] = []
        """Each call's index, name, id and pieces of its arguments."""
        self._num_begun = 0

    def add_reasoning(self, text: str) -> None:
        """Add to the reasoning."""
        self._reasoning.append(text)

    def add_content(self, text: str) -> None:
        """Add to the content."""
        self._content.append(text)

    def begin_call(self, name: str, call_id: str | None = None) -> None:
        """Begin the next call; `add_arguments` adds to this one."""
        self._calls.append((self._num_begun, name, call_id, []))
        self._num_begun += 1

    def add_arguments(self, text: str) -> None:
        """Add to the latest call's arguments."""
        if text and not self._calls:
            self._calls.append((self._num_begun - 1, None, None, []))
        if text:
            self._calls[-1][3].append(text)

    def take(self) -> AnswerDelta:
        """Return what was added since the last time."""
        reasoning, self._reasoning = "".join(self._reasoning), []
        content, self._content = "".join(self._content), []
        calls, self._calls = self._calls, []
        return AnswerDelta(
            reasoning,
            content,
            tuple([CallDelta(index, name, "".join(pieces), known) for index, name, known, pieces in calls]),
        )


def join_deltas(deltas: Iterable[AnswerDelta]) -> AnswerDelta:
    """Return the sum: each call once, with all of its arguments that the deltas have."""
    known = list(deltas)
    calls: dict[int, tuple[CallDelta, list[str]]] = {}
    for call in (call for delta in known for call in delta.calls):
        calls.setdefault(call.index, (call, []))[1].append(call.arguments)
    return AnswerDelta(
        "".join([delta.reasoning for delta in known]),
        "".join([delta.content for delta in known]),
        tuple([first._replace(arguments="".join(pieces)) for first, pieces in calls.values()]),
    )
