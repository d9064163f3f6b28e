"""Reasoning before the answer itself, between two markers such as `<think>` and `</think>`."""

import re

from millrace_runtime.chat.parsers.answer import (
    AnswerDelta,
    AnswerParser,
    CallDelta,
    Part,
    TextDelta,
    join_deltas,
)
from millrace_runtime.chat.parsers.reader import SPACE, Markers, StateParser

_NEWLINES = re.compile(r"\n*")


class ReasoningParser(StateParser):
    """Splits the text between two parsers: what is behind the reasoning goes to the second.

    The first one takes calls out, also those inside the reasoning: thinking models write some before the
    closing marker and then end their answer, which had neither content nor a call. Text around such a call
    stays reasoning until the marker comes. So does what the first parser gives back as content because it is
    no call, such as an opening marker that the model only mentions: no text is lost.

    Newlines behind the first marker and around the second belong to neither side, as Qwen's templates cut
    them from earlier answers; nor do those before a call. An answer that ends between the markers is all
    reasoning.
    """

    def __init__(
        self, before: AnswerParser, behind: AnswerParser, markers: tuple[str, str], *, begins_inside: bool
    ) -> None:
        """`before` gets the whole answer, and `behind` the text behind the reasoning.

        `begins_inside`: the prompt has opened it.
        """
        super().__init__(self._expect_opening)
        self._opening, self._closing = map(Markers, markers)
        self._before, self._behind = before, behind
        self._begins_inside = begins_inside
        self._reasoning: list[str] = []
        self._num_newlines = 0
        """Newlines at the reasoning's end up to here, which the closing marker would take away."""

    def feed(self, text: str) -> AnswerDelta:
        """Return what is certain with the next piece of text."""
        return join_deltas(map(self._split_part, self._before.feed(text).parts))

    def finish(self) -> AnswerDelta:
        """Return what was held back."""
        rest = [self._split_part(part) for part in self._before.finish().parts]
        self._reader.has_ended = True
        return join_deltas((*rest, self._split(""), self._behind.finish()))

    def _split_part(self, part: Part) -> AnswerDelta:
        if isinstance(part, TextDelta):
            return self._split(part.text)
        return AnswerDelta((*(self._release_before(part)), part))

    def _release_before(self, call: CallDelta) -> tuple[Part, ...]:
        """Return what is held where a call begins: no marker goes on behind it."""
        if call.name is None:
            return ()
        self._num_newlines = 0
        self._reader.has_ended = True
        held = self._split("").parts
        self._reader.has_ended = False
        return held

    def _split(self, text: str) -> AnswerDelta:
        if self._state == self._pass_on and not self._reader.has_ended:
            return self._behind.feed(text)
        before = super().feed(text)
        reasoning, self._reasoning = "".join(self._reasoning), []
        parts = (TextDelta("reasoning", reasoning),) if reasoning else ()
        content = before.content
        return AnswerDelta((*parts, *self._behind.feed(content).parts) if content else parts)

    def _expect_opening(self) -> bool:
        """A model may write the marker though the prompt has opened the reasoning."""
        self._hold(_NEWLINES if self._begins_inside else SPACE)
        if self._reader.is_undecided(self._opening):
            return False
        if self._reader.take_marker(self._opening):
            return self._go(self._skip_newlines)
        return self._go(self._read_reasoning) if self._begins_inside else self._release(self._pass_on)

    def _skip_newlines(self) -> bool:
        self._reader.take(_NEWLINES)
        return not self._reader.is_empty and self._go(self._read_reasoning)

    def _read_reasoning(self) -> bool:
        before, marker = self._reader.take_before(self._closing)
        text = before.rstrip("\n")
        if text:
            self._release_newlines()
            self._reasoning.append(text)
        self._num_newlines += len(before) - len(text)
        if marker:
            return self._go(self._skip_newlines_behind)
        if self._reader.has_ended:
            self._release_newlines()
        return False

    def _release_newlines(self) -> None:
        self._reasoning.append("\n" * self._num_newlines)
        self._num_newlines = 0

    def _skip_newlines_behind(self) -> bool:
        self._reader.take(_NEWLINES)
        return not self._reader.is_empty and self._go(self._pass_on)

    def _pass_on(self) -> bool:
        self._out.add_content(self._reader.take_to(len(self._reader.text)))
        return False
