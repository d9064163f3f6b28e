"""Calls as JSON behind a marker, one object or a list of them, with text around.

- Hermes, Qwen2.5, Qwen3: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.
- Granite 3: `<|tool_call|>[{"name": …, "arguments": {…}}, …]`; 3.1 writes `<tool_call>` before the list.
- Phi 4 mini: `<|tool_call|>[…]<|/tool_call|>`, or `functools[…]` if its template says so.
- InternLM 2 and 3: `<|action_start|><|plugin|>{"name": …, "parameters": {…}}<|action_end|>`.
- Nemotron of Llama's family: `<TOOLCALL>[…]</TOOLCALL>`.
"""

import re
from typing import NamedTuple

from millrace_runtime.chat.parsers.json_call import JsonFormatParser
from millrace_runtime.chat.parsers.reader import SPACE, Markers

_BEHIND_CALL = re.compile(r"[\s}\]]*", re.ASCII)
"""Models close more brackets than they have opened."""
_BEHIND_ITEM = re.compile(r"[\s,}\]]*", re.ASCII)


class JsonMarkers(NamedTuple):
    """The markers of one format."""

    openings: tuple[str, ...]
    """Behind each of these a call begins, or a list. One that ends in a bracket has begun the list."""
    closings: tuple[str, ...]
    """One of these may stand behind the call, or the list."""

    @property
    def texts(self) -> tuple[str, ...]:
        """All markers."""
        return self.openings + self.closings


HERMES = JsonMarkers(("<tool_call>",), ("</tool_call>",))
GRANITE = JsonMarkers(("<|tool_call|>", "<tool_call>"), ("</tool_call>",))
INTERNLM = JsonMarkers(("<|action_start|><|plugin|>",), ("<|action_end|>",))
NEMOTRON = JsonMarkers(("<TOOLCALL>",), ("</TOOLCALL>",))
PHI4_MINI = JsonMarkers(("<|tool_call|>", "functools["), ("<|/tool_call|>", "</|tool_call|>"))


class MarkedJsonParser(JsonFormatParser):
    """Reads objects behind an opening marker. Whitespace behind a call belongs to it."""

    def __init__(self, markers: JsonMarkers) -> None:
        super().__init__(self._read_content)
        self._opening = Markers(*markers.openings)
        self._closing = Markers(*markers.closings)
        self._is_list = False
        """Whether the calls between these markers are items of a list, as models write several."""

    def _read_content(self) -> bool:
        content, marker = self._reader.take_before(self._opening)
        self._out.add_content(content)
        self._held, self._is_list = [marker], marker.endswith("[")
        return bool(marker) and self._go(self._expect_object)

    def _expect_object(self) -> bool:
        self._hold(SPACE)
        if self._reader.waits:
            return False
        if self._reader.peek() == "[" and not self._is_list:
            self._held.append(self._reader.take_letter())
            self._is_list = True
        opening, self._held = "".join(self._held), []
        return self._open_object(opening)

    def _open_object(self, opening: str) -> bool:
        return self._open_call(opening, behind_call=self._expect_closing, behind_fault=self._read_content)

    def _expect_closing(self) -> bool:
        self._reader.take(_BEHIND_ITEM if self._is_list else _BEHIND_CALL)
        if self._reader.is_undecided(self._closing):
            return False
        if self._reader.peek() == "{":  # a second object between the same markers
            return self._open_object("")
        is_closed = self._reader.take_marker(self._closing)
        return self._go(self._skip_space if is_closed else self._read_content)

    def _skip_space(self) -> bool:
        self._reader.take(SPACE)
        return not self._reader.is_empty and self._go(self._read_content)
