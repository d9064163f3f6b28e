"""Calls that no marker begins: the name of a tool does, where it begins the answer or a line of it."""

import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

from millrace_runtime.chat.parsers.answer import Call
from millrace_runtime.chat.parsers.json_value import JsonValue, mend_object
from millrace_runtime.chat.parsers.parameter_types import Tools
from millrace_runtime.chat.parsers.python_call import NAME
from millrace_runtime.chat.parsers.reader import MAX_HELD, MAX_NAME, SPACE, Markers, StateParser, TextReader

FENCE = "```"
_FENCE = Markers(FENCE)
_BLANKS = re.compile(r"[^\S\n]*", re.ASCII)


class Value(Protocol):
    """Finds the end of a call's arguments."""

    is_ended: bool
    is_broken: bool

    def take(self, reader: TextReader) -> str:
        """Take the text up to the end."""


class LineParser(StateParser):
    """Reads calls that begin the answer, a line, or what stands behind a tag.

    They are held until it is certain that they are calls: they have ended, and so has their line, or another
    marker follows. So their arguments come at once. All else is content, whole. Within a fence nothing is a
    call. Whitespace behind a call belongs to it.
    """

    def __init__(self, tools: Tools, *, tag: str, closing: str) -> None:
        """`tools` are the request's. `closing` may stand behind calls."""
        super().__init__(self._expect_tag)
        self._names = frozenset(str(tool["function"]["name"]) for tool in tools)
        self._name = ""
        self._value: Value = JsonValue()
        self._written: list[str] = []
        """The value up to here."""
        self._num_written = 0
        self._is_fenced = False
        self._is_call_fence = False
        """Whether calls may stand in the fence."""
        self._tag = Markers(tag)
        self._line_end = Markers("\n", tag)
        self._behind_call = Markers("\n", tag, closing)
        self._closing = Markers(closing)
        self._fenced_closing = Markers(closing, FENCE)

    def _expect_tag(self) -> bool:
        self._hold(SPACE)
        if self._reader.is_undecided(self._tag) or self._reader.waits:
            return False
        if not (tag := self._reader.take_marker(self._tag)):
            return self._begin_line()
        self._held.append(tag)
        return self._go(self._skip_space)

    def _skip_space(self) -> bool:
        self._hold(SPACE)
        return not self._reader.waits and self._expect_call()

    def _begin_line(self) -> bool:
        if self._reader.peek() == FENCE[0]:
            return self._go(self._expect_fence)
        is_code = self._is_fenced and not self._is_call_fence
        return self._leave_line() if is_code else self._expect_call()

    def _expect_fence(self) -> bool:
        if self._reader.is_undecided(_FENCE):
            return False
        if not (fence := self._reader.take_marker(_FENCE)):
            return self._leave_line()
        self._held.append(fence)
        self._is_fenced, self._is_call_fence = not self._is_fenced, False
        return self._go(self._open_fence if self._is_fenced else self._leave_line)

    def _open_fence(self) -> bool:
        """Read what stands behind a fence's beginning."""
        return self._leave_line()

    def _leave_line(self) -> bool:
        return self._release(self._read_content)

    def _read_content(self) -> bool:
        content, marker = self._reader.take_before(self._line_end)
        self._out.add_content(content)
        if marker == "\n":
            self._out.add_content(marker)
            return self._go(self._expect_line)
        self._held = [marker]
        self._is_fenced = self._is_fenced and not marker
        return bool(marker) and self._go(self._skip_space)

    def _expect_line(self) -> bool:
        if self._reader.waits:
            return False
        return self._go(self._read_indent) if self._reader.peek().isspace() else self._begin_line()

    def _read_indent(self) -> bool:
        """Read blanks: a fence may be indented, and a call behind prose is not."""
        self._hold(_BLANKS)
        if self._reader.waits:
            return False
        return self._go(self._expect_fence) if self._reader.peek() == FENCE[0] else self._leave_line()

    @abstractmethod
    def _expect_call(self) -> bool:
        """Begin to read what may be a call; a letter is there, or the text has ended."""

    def _begin_name(self) -> bool:
        self._name = ""
        return self._go(self._read_name)

    def _read_name(self) -> bool:
        self._name += self._hold(NAME)
        if self._reader.waits and len(self._name) <= MAX_NAME:
            return False
        return self._expect_value() if self._name in self._names else self._leave_line()

    @abstractmethod
    def _expect_value(self) -> bool:
        """Read what stands between the name and the value, behind which the call's line ends."""

    def _begin_value(self, value: Value) -> bool:
        self._value, self._written, self._num_written = value, [], 0
        return self._go(self._read_value)

    def _read_value(self) -> bool:
        text = self._value.take(self._reader)
        self._held.append(text)
        self._written.append(text)
        self._num_written += len(text)
        is_cut = self._reader.has_ended and not self._value.is_ended
        if is_cut or self._value.is_broken or self._num_written > MAX_HELD:
            return self._leave_line()
        return self._value.is_ended and self._end_value()

    def _end_value(self) -> bool:
        return self._go(self._expect_line_end)

    def _expect_line_end(self) -> bool:
        self._hold(_BLANKS)
        if self._reader.is_undecided(self._behind_call) or self._reader.waits:
            return False
        is_line_end = self._reader.is_empty or self._reader.stands_at(self._behind_call)
        calls = self._list_calls("".join(self._written)) if is_line_end else ()
        if not calls:
            return self._leave_line()
        self._held = []
        self._out.add_calls(calls)
        return self._go(self._expect_closing)

    @abstractmethod
    def _list_calls(self, value: str) -> Sequence[Call]:
        """Return the calls of this name and value, and others in the value; none: it is no call."""

    def _expect_closing(self) -> bool:
        self._reader.take(SPACE)
        closing = self._fenced_closing if self._is_fenced else self._closing
        if self._reader.is_undecided(closing) or self._reader.is_empty:
            return False
        if not (marker := self._reader.take_marker(closing)):
            return self._go(self._expect_tag)
        self._is_fenced = self._is_fenced and marker != FENCE
        return True


class Glm4Parser(LineParser):
    """GLM 4 before 4.5: the function's name in a line of its own, and its arguments as JSON behind it.

    `<|assistant|>` stands before each further call, and behind a text. The end of the answer is
    `<|observation|>`, behind which the result would stand.
    """

    def __init__(self, tools: Tools) -> None:
        """`tools` are the request's."""
        super().__init__(tools, tag="<|assistant|>", closing="<|observation|>")

    def _expect_call(self) -> bool:
        return self._begin_name()

    def _expect_value(self) -> bool:
        if self._reader.peek() != "\n":
            return self._leave_line()
        self._held.append(self._reader.take_letter())
        return self._go(self._expect_object)

    def _expect_object(self) -> bool:
        self._hold(SPACE)
        if self._reader.waits:
            return False
        if self._reader.peek() == "{":
            return self._begin_value(JsonValue())
        return self._release(self._expect_line)

    def _list_calls(self, value: str) -> Sequence[Call]:
        arguments = mend_object(value)
        return [] if arguments is None else [Call(self._name, arguments)]
