"""GLM 4.5 to 4.7: `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`.

Line breaks may stand between the parts. Values are text, so the tool's schema says which JSON they become.
"""

import re

from millrace_runtime.chat.parsers.parameter_types import Tools, TypedArguments
from millrace_runtime.chat.parsers.reader import MAX_NAME, SPACE, Markers, StateParser

_OPENING = Markers("<tool_call>")
_IN_CALL = Markers("<arg_key>", "</tool_call>")
_KEY_END = Markers("</arg_key>", "<arg_value>", "</tool_call>")
"""Models forget the first."""
_BEFORE_VALUE = Markers("<arg_value>", "<arg_key>", "</tool_call>")
_VALUE_END = Markers("</arg_value>")
_NAME = re.compile(r"[\w.-]*", re.ASCII)


class GlmParser(StateParser):
    """Reads calls. Text between their parts is neither content nor an argument, if more parts follow."""

    def __init__(self, tools: Tools) -> None:
        """`tools` are the request's."""
        super().__init__(self._read_content)
        self._tools = tools
        self._name = ""
        self._arguments: TypedArguments

    def _read_content(self) -> bool:
        content, marker = self._reader.take_before(_OPENING)
        self._out.add_content(content)
        self._held, self._name = [marker], ""
        return bool(marker) and self._go(self._skip_before_name)

    def _skip_before_name(self) -> bool:
        self._hold(SPACE)
        return not self._reader.waits and self._go(self._read_name)

    def _read_name(self) -> bool:
        self._name += self._hold(_NAME)
        if self._reader.waits and len(self._name) <= MAX_NAME:
            return False
        is_name = 0 < len(self._name) <= MAX_NAME and not self._reader.is_empty
        return self._go(self._expect_arguments) if is_name else self._release(self._read_content)

    def _expect_arguments(self) -> bool:
        self._hold(SPACE)
        if self._reader.is_undecided(_IN_CALL) or self._reader.waits:
            return False
        if not self._reader.stands_at(_IN_CALL):
            return self._release(self._read_content)
        self._held = []
        self._arguments = TypedArguments(self._tools, self._name, self._out)
        return self._go(self._read_call)

    def _read_call(self) -> bool:
        marker = self._skip_before(_IN_CALL)
        return bool(marker) and self._follow(marker)

    def _follow(self, marker: str) -> bool:
        match marker:
            case "<arg_key>":
                self._name = ""
                return self._go(self._read_key)
            case "</arg_key>":
                return self._go(self._expect_value)
            case "<arg_value>":
                self._arguments.begin_value(self._name.strip())
                return self._go(self._read_value)
        self._arguments.end()
        return self._go(self._skip_space)

    def _read_key(self) -> bool:
        text, marker, is_over = self._reader.take_within(_KEY_END, MAX_NAME - len(self._name))
        self._name += text
        if not is_over:
            return False
        return self._follow(marker) if marker else self._go(self._read_call)

    def _expect_value(self) -> bool:
        marker = self._skip_before(_BEFORE_VALUE)
        return bool(marker) and self._follow(marker)

    def _read_value(self) -> bool:
        text, marker = self._reader.take_before(_VALUE_END)
        self._arguments.add_value(text)
        if marker:
            self._arguments.end_value()
        return bool(marker) and self._go(self._read_call)

    def _skip_space(self) -> bool:
        self._reader.take(SPACE)
        return not self._reader.is_empty and self._go(self._read_content)
