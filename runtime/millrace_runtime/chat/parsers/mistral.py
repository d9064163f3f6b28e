"""Mistral: `[TOOL_CALLS] [{"name": …, "arguments": {…}}, …]`, and since 2025 `[TOOL_CALLS]name[ARGS]{…}`.

Between name and arguments, `[ARGS]` may be absent, and `[CALL_ID]` with an id may stand before it.
"""

import re

from millrace_runtime.chat.parsers.json_call import JsonFormatParser
from millrace_runtime.chat.parsers.json_value import JsonValue
from millrace_runtime.chat.parsers.reader import MAX_NAME, SPACE, Markers

_OPENING = Markers("[TOOL_CALLS]")
_BEFORE_ARGUMENTS = Markers("[ARGS]", "[CALL_ID]")
_NAME = re.compile(r"[^\s\[\]{}<>\"',;]*", re.ASCII)
_ID = re.compile(r"[0-9A-Za-z_-]*")
_BETWEEN_CALLS = re.compile(r"[\s,\]]*", re.ASCII)


class MistralParser(JsonFormatParser):
    """Reads a list of objects, or one name with its arguments, behind each `[TOOL_CALLS]`."""

    def __init__(self) -> None:
        super().__init__(self._read_content)
        self._name = ""
        self._arguments = JsonValue()

    def _read_content(self) -> bool:
        content, marker = self._reader.take_before(_OPENING)
        self._out.add_content(content)
        self._held, self._name = [marker], ""
        return bool(marker) and self._go(self._expect_call)

    def _expect_call(self) -> bool:
        self._hold(SPACE)
        if self._reader.waits:
            return False
        if self._reader.peek() == "[":
            self._held.append(self._reader.take_letter())
            return self._open_element()
        return self._open_element() if self._reader.peek() == "{" else self._go(self._read_name)

    def _open_element(self) -> bool:
        opening, self._held = "".join(self._held), []
        return self._open_call(opening, behind_call=self._skip_between, behind_fault=self._read_content)

    def _skip_between(self) -> bool:
        self._reader.take(_BETWEEN_CALLS)
        if self._reader.is_empty:
            return False
        return self._open_element() if self._reader.peek() == "{" else self._go(self._read_content)

    def _read_name(self) -> bool:
        self._name += self._hold(_NAME)
        if self._reader.waits and len(self._name) <= MAX_NAME:
            return False
        is_name = 0 < len(self._name) <= MAX_NAME and not self._reader.is_empty
        return self._go(self._expect_arguments) if is_name else self._release(self._read_content)

    def _expect_arguments(self) -> bool:
        self._hold(SPACE)
        if self._reader.is_undecided(_BEFORE_ARGUMENTS):
            return False
        marker = self._reader.take_marker(_BEFORE_ARGUMENTS)
        self._held.append(marker)
        if marker:
            return self._go(self._expect_object if marker == "[ARGS]" else self._skip_id)
        return self._begin_call() if self._reader.peek() == "{" else self._release(self._read_content)

    def _expect_object(self) -> bool:
        """An answer that ends here has at least named its call."""
        self._hold(SPACE)
        if self._reader.waits:
            return False
        is_call = self._reader.is_empty or self._reader.peek() == "{"
        return self._begin_call() if is_call else self._release(self._read_content)

    def _skip_id(self) -> bool:
        self._hold(_ID)
        return not self._reader.waits and self._go(self._expect_arguments)

    def _begin_call(self) -> bool:
        self._held = []
        self._out.begin_call(self._name)
        self._arguments = JsonValue()
        return self._go(self._read_arguments)

    def _read_arguments(self) -> bool:
        self._out.add_arguments(self._arguments.take(self._reader))
        is_over = self._arguments.is_ended or self._arguments.is_broken
        return is_over and self._go(self._skip_space)

    def _skip_space(self) -> bool:
        self._reader.take(SPACE)
        return not self._reader.is_empty and self._go(self._read_content)
