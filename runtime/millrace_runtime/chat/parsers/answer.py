"""The parts that an answer is split into, piece by piece: reasoning, content and calls."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Literal, NamedTuple, Protocol


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


class Call(NamedTuple):
    """A whole call."""

    name: str
    arguments: str
    """As JSON."""


class TextDelta(NamedTuple):
    """The next piece of a text."""

    kind: Literal["reasoning", "content"]
    text: str


Part = TextDelta | CallDelta


class AnswerDelta(NamedTuple):
    """The parts that a piece of text adds to the answer."""

    parts: tuple[Part, ...] = ()
    """In the order of the text. Neighbours are of different texts or calls."""

    @property
    def reasoning(self) -> str:
        """The reasoning in it."""
        return self._join("reasoning")

    @property
    def content(self) -> str:
        """The content in it."""
        return self._join("content")

    @property
    def calls(self) -> tuple[CallDelta, ...]:
        """The pieces of calls in it."""
        return tuple(part for part in self.parts if isinstance(part, CallDelta))

    def _join(self, kind: str) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, TextDelta) and part.kind == kind)


class AnswerParser(Protocol):
    """Splits one answer. The sum of its deltas does not depend on where the text is cut."""

    def feed(self, text: str) -> AnswerDelta:
        """Return the parts that are certain with the next piece of text."""

    def finish(self) -> AnswerDelta:
        """Return the parts that were held back, as the answer has ended."""


class PlainParser:
    """Takes all text for content."""

    def feed(self, text: str) -> AnswerDelta:
        """Return the text."""
        return AnswerDelta((TextDelta("content", text),) if text else ())

    def finish(self) -> AnswerDelta:
        """Return nothing: no text is held back."""
        return AnswerDelta()


class DeltaBuilder:
    """Collects the next delta of an answer."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._num_begun = 0

    def add_reasoning(self, text: str) -> None:
        """Add to the reasoning."""
        if text:
            self._parts.append(TextDelta("reasoning", text))

    def add_content(self, text: str) -> None:
        """Add to the content."""
        if text:
            self._parts.append(TextDelta("content", text))

    def begin_call(self, name: str, call_id: str | None = None) -> None:
        """Begin the next call; `add_arguments` adds to this one."""
        self._parts.append(CallDelta(self._num_begun, name, "", call_id))
        self._num_begun += 1

    def add_arguments(self, text: str) -> None:
        """Add to the latest call's arguments."""
        if text:
            self._parts.append(CallDelta(self._num_begun - 1, None, text))

    def add_calls(self, calls: Iterable[Call]) -> None:
        """Add whole calls."""
        for call in calls:
            self.begin_call(call.name)
            self.add_arguments(call.arguments)

    def take(self) -> AnswerDelta:
        """Return the parts that were added since the last time."""
        parts, self._parts = self._parts, []
        return AnswerDelta(tuple(_merge(parts)))


def join_deltas(deltas: Iterable[AnswerDelta]) -> AnswerDelta:
    """Return the sum."""
    return AnswerDelta(tuple(_merge(part for delta in deltas for part in delta.parts)))


def _merge(parts: Iterable[Part]) -> Iterator[Part]:
    """Yield neighbours of one text, or of one call, as one part."""
    for _, neighbours in groupby(parts, key=lambda part: part[0]):
        first, *others = neighbours
        if not others:
            yield first
        elif isinstance(first, TextDelta):
            texts = [part.text for part in others if isinstance(part, TextDelta)]
            yield first._replace(text="".join([first.text, *texts]))
        else:
            calls = [part.arguments for part in others if isinstance(part, CallDelta)]
            yield first._replace(arguments="".join([first.arguments, *calls]))
