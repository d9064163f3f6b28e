"""Hermes, Qwen2.5, Qwen3: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, with text around calls."""

import re

from millrace_runtime.chat.parsers.json_call import JsonFormatParser
from millrace_runtime.chat.parsers.reader import SPACE, Markers

_OPENING = Markers("<tool_call>")
_CLOSING = Markers("</tool_call>")
_BEHIND_CALL = re.compile(r"[\s}\]]*", re.ASCII)
"""Models close more brackets than they have opened."""
_BEHIND_ITEM = re.compile(r"[\s,}\]]*", re.ASCII)


class HermesParser(JsonFormatParser):
    """Reads objects between `<tool_call>` and `</tool_call>`. Whitespace behind a call belongs to it."""

    def __init__(self) -> None:
        super().__init__(self._read_content)
        self._is_list = False
        """Whether the calls between these markers are items of a list, as models write several."""

    def _read_content(self) -> bool:
        content, marker = self._reader.take_before(_OPENING)
        self._out.add_content(content)
        self._held, self._is_list = [marker], False
        return bool(marker) and self._go(self._expect_object)

    def _expect_object(self) -> bool:
        self._hold(SPACE)
        if self._reader.waits:
            return False
        if self._reader.peek() == "[":
            self._held.append(self._reader.take_letter())
            self._is_list = True
        opening, self._held = "".join(self._held), []
        return self._open_object(opening)

    def _open_object(self, opening: str) -> bool:
        return self._open_call(opening, behind_call=self._expect_closing, behind_fault=self._read_content)

    def _expect_closing(self) -> bool:
        self._reader.take(_BEHIND_ITEM if self._is_list else _BEHIND_CALL)
        if self._reader.is_undecided(_CLOSING):
            return False
        if self._reader.peek() == "{":  # a second object between the same markers
            return self._open_object("")
        is_closed = self._reader.take_marker(_CLOSING)
        return self._go(self._skip_space if is_closed else self._read_content)

    def _skip_space(self) -> bool:
        self._reader.take(SPACE)
        return not self._reader.is_empty and self._go(self._read_content)
