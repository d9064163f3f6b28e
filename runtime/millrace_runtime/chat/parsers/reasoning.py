"""Reasoning before the answer itself, between two markers such as `<think>` and `</think>`."""

import re
from collections.abc import Callable, Collection, Sequence
from itertools import groupby

from millrace_runtime.chat.parsers.answer import (
    AnswerDelta,
    AnswerParser,
    CallDelta,
    TextDelta,
    join_deltas,
)
from millrace_runtime.chat.parsers.json_value import is_object
from millrace_runtime.chat.parsers.reader import SPACE, Markers, StateParser

_NEWLINES = re.compile(r"\n*")


class ReasoningParser(StateParser):
    """Splits off the reasoning, and gives the text behind it to another parser.

    Newlines behind the first marker and around the second belong to neither side, as Qwen's templates cut
    them from earlier answers. An answer that ends between the markers is all reasoning.

    Thinking models write some calls before the closing marker, and end there: an agent would take that for an
    empty answer. So if nothing comes behind the reasoning, the calls at its end are the answer's. Before
    other text they are drafts, and stay reasoning alone.
    """

    def __init__(
        self,
        behind: AnswerParser,
        markers: tuple[Sequence[str], Sequence[str]],
        *,
        begins_inside: bool,
        tags: tuple[str, str] | None = None,
        find_calls: Callable[[str], Sequence[CallDelta]] | None = None,
    ) -> None:
        """`behind` gets the text behind the reasoning. `markers` are the spellings of the first and of the
        second one. `begins_inside`: the prompt has opened it. `tags` may stand around the text behind.

        `find_calls` returns the calls in a whole text; None: the request has no tools.
        """
        super().__init__(self._expect_opening)
        self._find_calls = find_calls
        self._thought: list[str] = []
        """The whole reasoning, if there may be calls in it."""
        self._is_thought_alone = True
        self._opening, self._closing = (Markers(*spellings) for spellings in markers)
        self._behind, self._tags = behind, tags
        self._begins_inside = begins_inside
        self._reasoning: list[str] = []
        self._num_newlines = 0
        """Newlines at the reasoning's end up to here, which the closing marker would take away."""

    def feed(self, text: str) -> AnswerDelta:
        """Return the parts that are certain with the next piece of text."""
        if self._state == self._pass_on and not self._reader.has_ended:
            return self._note_behind(self._behind.feed(text))
        before = super().feed(text)
        reasoning, self._reasoning = "".join(self._reasoning), []
        parts = (TextDelta("reasoning", reasoning),) if reasoning else ()
        if self._find_calls is not None:
            self._thought.append(reasoning)
        content = before.content
        behind = self._note_behind(self._behind.feed(content)) if content else AnswerDelta()
        return AnswerDelta((*parts, *behind.parts))

    def finish(self) -> AnswerDelta:
        """Return the parts that were held back."""
        rest = super().finish()
        behind = self._note_behind(self._behind.finish())
        if self._find_calls is None or not self._is_thought_alone:
            return join_deltas((rest, behind))
        return join_deltas((rest, behind, AnswerDelta(tuple(self._find_calls("".join(self._thought))))))

    def _note_behind(self, delta: AnswerDelta) -> AnswerDelta:
        if delta.calls or delta.content.strip():
            self._is_thought_alone = False
        return delta

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
            self._behind = (
                self._behind if self._tags is None else TaggedAnswerParser(self._behind, self._tags)
            )
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


class TaggedAnswerParser(StateParser):
    """Takes the tags around an answer away, such as `<response>`, and gives the text to another parser.

    The second one counts at the answer's end alone: an answer may speak of it. Newlines inside of the tags
    and whitespace behind them belong to neither side.
    """

    def __init__(self, inside: AnswerParser, tags: tuple[str, str]) -> None:
        """`inside` gets the text. An answer that does not begin with the first tag keeps the second one."""
        super().__init__(self._expect_opening)
        self._inside = inside
        self._opening, self._closing = map(Markers, tags)
        self._end: list[str] = []
        """The newlines at the end of the text up to here, which the closing tag would take away, and it."""

    def feed(self, text: str) -> AnswerDelta:
        """Return the parts that are certain with the next piece of text."""
        content = super().feed(text).content
        return self._inside.feed(content) if content else AnswerDelta()

    def finish(self) -> AnswerDelta:
        """Return the parts that were held back."""
        return join_deltas((super().finish(), self._inside.finish()))

    def _expect_opening(self) -> bool:
        self._hold(SPACE)
        if self._reader.is_undecided(self._opening) or self._reader.waits:
            return False
        if not self._reader.take_marker(self._opening):
            return self._release(self._pass_on)
        self._held = []
        return self._go(self._begin)

    def _begin(self) -> bool:
        self._reader.take(_NEWLINES)
        return not self._reader.is_empty and self._go(self._read_inside)

    def _read_inside(self) -> bool:
        before, marker = self._reader.take_before(self._closing)
        text = before.rstrip("\n")
        if text:
            self._release_end()
            self._out.add_content(text)
        self._end.append(before[len(text) :])
        if marker:
            self._end.append(marker)
            return self._go(self._expect_end)
        if self._reader.has_ended:
            self._release_end()
        return False

    def _expect_end(self) -> bool:
        self._end.append(self._reader.take(SPACE))
        if self._reader.is_empty:
            return False
        ended = "".join(self._end)
        text = ended.rstrip("\n")
        self._out.add_content(text)
        self._end = [ended[len(text) :]]
        return self._go(self._read_inside)

    def _release_end(self) -> None:
        self._out.add_content("".join(self._end))
        self._end = []

    def _pass_on(self) -> bool:
        self._out.add_content(self._reader.take_to(len(self._reader.text)))
        return False


def list_whole_calls(parser: AnswerParser, text: str, names: Collection[str]) -> list[CallDelta]:
    """Return the calls of these functions at a text's end whose arguments are an object.

    Behind a call there is no other text: a model that went on to think has not called.
    """
    parts = join_deltas((parser.feed(text), parser.finish())).parts
    texts = [place for place, part in enumerate(parts) if isinstance(part, TextDelta) and part.text.strip()]
    last = [part for part in parts[texts[-1] + 1 if texts else 0 :] if isinstance(part, CallDelta)]
    found: list[CallDelta] = []
    for _, pieces in groupby(last, key=lambda call: call.index):
        first, *others = pieces
        arguments = first.arguments + "".join(piece.arguments for piece in others)
        if first.name in names and is_object(arguments):
            found.append(CallDelta(len(found), first.name, arguments, first.call_id))
    return found
