"""Qwen3-Coder: `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`.

Values are text, so the tool's schema says which JSON they become.
"""

import json
import re

from millrace_runtime.chat.parsers.parameter_types import ParameterTypes, Tools
from millrace_runtime.chat.parsers.reader import MAX_NAME, SPACE, Markers, State, StateParser

_OPENING = Markers("<tool_call>", "<function=")
"""Models forget the first."""
_FUNCTION = Markers("<function=")
_IN_FUNCTION = Markers("<parameter=", "</function>", "</tool_call>")
_BEHIND_VALUE = Markers("\n</parameter>", "</parameter>", "\n<parameter=", "\n</function>")
"""A newline at the value's end is the format's. Models forget to close a parameter."""
_CLOSING = Markers("</tool_call>")
_NAME = re.compile(r"[^<>\n]*")


class Qwen3CoderParser(StateParser):
    """Reads functions and their parameters. Values of strings are passed on as they come, others whole."""

    def __init__(self, tools: Tools) -> None:
        """`tools` are the request's."""
        super().__init__(self._read_content)
        self._tools = tools
        self._types = ParameterTypes(tools, "")
        self._name = ""
        self._member = ""
        """What stands before the parameter's value in the arguments."""
        self._value: list[str] | None = None
        """The value's text up to here; None for one that is passed on as it comes."""
        self._num_parameters = 0

    def _read_content(self) -> bool:
        content, marker = self._reader.take_before(_OPENING)
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
            self._reader.take_letter()
            self._held = []
            return self._go(behind_name)

        return self._go(read)

    def _refuse(self) -> bool:
        return self._release(self._read_content)

    def _drop(self) -> bool:
        self._held = []
        return self._go(self._read_function)

    def _begin_call(self) -> bool:
        self._out.begin_call(self._name)
        self._out.add_arguments("{")
        self._types = ParameterTypes(self._tools, self._name)
        self._num_parameters = 0
        return self._go(self._read_function)

    def _read_function(self) -> bool:
        """Drop text between parameters: it is neither content nor an argument."""
        marker = self._reader.take_before(_IN_FUNCTION).marker
        return bool(marker) and self._follow(marker)

    def _follow(self, marker: str) -> bool:
        match marker.lstrip("\n"):
            case "<parameter=":
                return self._read_tag_name(self._begin_value, self._drop)
            case "</parameter>":
                return self._go(self._read_function)
            case "</function>":
                self._out.add_arguments("}")
                return self._go(self._expect_closing)
        self._out.add_arguments("}")
        return self._go(self._skip_space)

    def _begin_value(self) -> bool:
        if self._reader.waits:
            return False
        if self._reader.peek() == "\n":
            self._reader.take_letter()
        comma = ", " if self._num_parameters else ""
        self._member = f"{comma}{_to_json(self._name)}: "
        self._num_parameters += 1
        self._value = [] if self._types.needs_whole(self._name) else None
        if self._value is None:
            self._out.add_arguments(f'{self._member}"')
        return self._go(self._read_value)

    def _read_value(self) -> bool:
        text, marker = self._reader.take_before(_BEHIND_VALUE)
        if self._value is None:
            self._out.add_arguments(_to_json(text)[1:-1] + ('"' if marker else ""))
        else:
            self._value.append(text)
            if marker:
                value = self._types.convert(self._name, "".join(self._value))
                self._out.add_arguments(self._member + value)
        return bool(marker) and self._follow(marker)

    def _expect_closing(self) -> bool:
        self._reader.take(SPACE)
        if self._reader.is_undecided(_CLOSING):
            return False
        is_closed = self._reader.take_marker(_CLOSING)
        return self._go(self._skip_space if is_closed else self._read_content)

    def _skip_space(self) -> bool:
        self._reader.take(SPACE)
        return not self._reader.is_empty and self._go(self._read_content)


def _to_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
