"""Qwen3-Coder: `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`.

Seed-OSS writes the same between `<seed:tool_call>` and `</seed:tool_call>`. Values are text, so the tool's
schema says which JSON they become. Qwen3-Coder has them in lines of their own, Seed-OSS between the tags.
"""

import re
from typing import NamedTuple

from millrace_runtime.chat.parsers.parameter_types import Tools, TypedArguments
from millrace_runtime.chat.parsers.reader import MAX_NAME, SPACE, Markers, State, StateParser

_FUNCTION = Markers("<function=")
_BEHIND_VALUE = Markers("</parameter>", "\n<parameter=", "\n</function>")
"""Models forget to close a parameter."""
_BEHIND_LINES = Markers("\n</parameter>", "</parameter>", "\n<parameter=", "\n</function>")
"""A newline at the value's end is the format's."""
_NAME = re.compile(r"[^<>\n]*")


class FunctionMarkers(NamedTuple):
    """The markers of one format."""

    opening: str
    """Before a function. Models forget it."""
    closing: str
    has_lines: bool
    """Whether a value's last newline is the format's, also where the value has begun in the tag's line."""

    @property
    def texts(self) -> tuple[str, ...]:
        """Those that may be tokens of the model."""
        return self.opening, self.closing


QWEN3_CODER = FunctionMarkers("<tool_call>", "</tool_call>", has_lines=True)
SEED_OSS = FunctionMarkers("<seed:tool_call>", "</seed:tool_call>", has_lines=False)


class Qwen3CoderParser(StateParser):
    """Reads functions and their parameters. Values of strings are passed on as they come, others whole."""

    def __init__(self, markers: FunctionMarkers, tools: Tools) -> None:
        """`tools` are the request's."""
        super().__init__(self._read_content)
        self._opening = Markers(markers.opening, "<function=")
        self._closing = Markers(markers.closing)
        self._in_function = Markers("<parameter=", "</function>", markers.closing)
        self._has_lines = markers.has_lines
        self._behind_value = _BEHIND_VALUE
        self._tools = tools
        self._name = ""
        self._arguments: TypedArguments

    def _read_content(self) -> bool:
        content, marker = self._reader.take_before(self._opening)
        self._out.add_content(content)
        self._held = [marker]
        if marker == "<function=":
            return self._read_tag_name(self._begin_call, self._refuse)
        return bool(marker) and self._go(self._expect_function)

    def _expect_function(self) -> bool:
        self._hold(SPACE)
        if self._reader.is_undecided(_FUNCTION):
            return False
        marker = self._reader.take_marker(_FUNCTION)
        self._held.append(marker)
        if not marker:
            return self._release(self._read_content)
        return self._read_tag_name(self._begin_call, self._refuse)

    def _read_tag_name(self, behind_name: State, behind_fault: State) -> bool:
        """Read a name up to `>`, then go to one of two states."""
        self._name = ""

        def read() -> bool:
            self._name += self._hold(_NAME)
            if self._reader.waits and len(self._name) <= MAX_NAME:
                return False
            is_name = 0 < len(self._name) <= MAX_NAME and self._reader.peek() == ">"
            if not is_name:
                return self._go(behind_fault)
            self._held.append(self._reader.take_letter())
            return self._go(behind_name)

        return self._go(read)

    def _refuse(self) -> bool:
        return self._release(self._read_content)

    def _drop(self) -> bool:
        self._held = []
        return self._go(self._read_function)

    def _begin_call(self) -> bool:
        """Text behind a function's name says that the model speaks of a call, and writes none."""
        self._hold(SPACE)
        if self._reader.is_undecided(self._in_function) or self._reader.waits:
            return False
        if not self._reader.stands_at(self._in_function):
            return self._release(self._read_content)
        self._held = []
        self._arguments = TypedArguments(self._tools, self._name, self._out)
        return self._go(self._read_function)

    def _read_function(self) -> bool:
        """Text between parameters is neither content nor an argument, if more of the call follows."""
        marker = self._skip_before(self._in_function)
        return bool(marker) and self._follow(marker)

    def _follow(self, marker: str) -> bool:
        match marker.lstrip("\n"):
            case "<parameter=":
                return self._read_tag_name(self._begin_value, self._drop)
            case "</parameter>":
                return self._go(self._read_function)
            case "</function>":
                self._arguments.end()
                return self._go(self._expect_closing)
        self._arguments.end()
        return self._go(self._skip_space)

    def _begin_value(self) -> bool:
        if self._reader.waits:
            return False
        self._held = []
        is_line = self._reader.peek() == "\n"
        if is_line:
            self._reader.take_letter()
        self._behind_value = _BEHIND_LINES if is_line or self._has_lines else _BEHIND_VALUE
        self._arguments.begin_value(self._name)
        return self._go(self._read_value)

    def _read_value(self) -> bool:
        text, marker = self._reader.take_before(self._behind_value)
        self._arguments.add_value(text)
        if not marker:
            return False
        self._arguments.end_value()
        return self._follow(marker)

    def _expect_closing(self) -> bool:
        self._reader.take(SPACE)
        if self._reader.is_undecided(self._closing):
            return False
        is_closed = self._reader.take_marker(self._closing)
        return self._go(self._skip_space if is_closed else self._read_content)

    def _skip_space(self) -> bool:
        self._reader.take(SPACE)
        return not self._reader.is_empty and self._go(self._read_content)
