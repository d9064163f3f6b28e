"""GLM 4 before 4.5: the function's name in a line of its own, and its arguments as JSON behind it.

`<|assistant|>` stands before each further call, and behind a text. The end of the answer is
`<|observation|>`, behind which the result would stand.
"""

import re

from millrace_runtime.chat.parsers.json_value import JsonValue
from millrace_runtime.chat.parsers.parameter_types import Tools
from millrace_runtime.chat.parsers.reader import MAX_NAME, SPACE, Markers, StateParser

_TURN = Markers("<|assistant|>")
_LINE_END = Markers("\n", "<|assistant|>")
_END = Markers("<|observation|>")
_BLANKS = re.compile(r"[ \t]*")
_NAME = re.compile(r"[\w.-]*", re.ASCII)


class Glm4Parser(StateParser):
    """Reads calls at the beginning of each line: no marker says that a name is a call, so it is a tool's."""

    def __init__(self, tools: Tools) -> None:
        """`tools` are the request's."""
        super().__init__(self._expect_turn)
        self._names = frozenset(str(tool["function"]["name"]) for tool in tools)
        self._name = ""
        self._arguments = JsonValue()

    def _expect_turn(self) -> bool:
        self._hold(SPACE)
        if self._reader.is_undecided(_TURN):
            return False
        self._held.append(self._reader.take_marker(_TURN))
        return self._go(self._expect_name)

    def _expect_name(self) -> bool:
        self._hold(SPACE)
        return not self._reader.waits and self._begin_line()

    def _begin_line(self) -> bool:
        self._name = ""
        return self._go(self._read_name)

    def _read_name(self) -> bool:
        self._name += self._hold(_NAME)
        if self._reader.waits and len(self._name) <= MAX_NAME:
            return False
        is_call = self._name in self._names
        return self._go(self._expect_line_end) if is_call else self._release(self._read_content)

    def _expect_line_end(self) -> bool:
        self._hold(_BLANKS)
        if self._reader.waits:
            return False
        is_line = self._reader.peek() == "\n"
        return self._go(self._expect_object) if is_line else self._release(self._read_content)

    def _expect_object(self) -> bool:
        self._hold(SPACE)
        if self._reader.waits:
            return False
        if self._reader.peek() != "{":
            return self._release(self._begin_line)
        self._held = []
        self._out.begin_call(self._name)
        self._arguments = JsonValue()
        return self._go(self._read_arguments)

    def _read_arguments(self) -> bool:
        self._out.add_arguments(self._arguments.take(self._reader))
        is_over = self._arguments.is_ended or self._arguments.is_broken
        return is_over and self._go(self._expect_end)

    def _expect_end(self) -> bool:
        self._reader.take(SPACE)
        if self._reader.is_undecided(_END) or self._reader.is_empty:
            return False
        return self._go(self._expect_end if self._reader.take_marker(_END) else self._expect_turn)

    def _read_content(self) -> bool:
        content, marker = self._reader.take_before(_LINE_END)
        self._out.add_content(content)
        if marker == "\n":
            self._out.add_content(marker)
            return self._begin_line()
        self._held = [marker]
        return bool(marker) and self._go(self._expect_name)
