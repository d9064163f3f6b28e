"""Calls that markers surround, with the name before the arguments' JSON: DeepSeek's and Kimi's.

- DeepSeek V3 and R1: `<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>name`, the arguments
  in a fence of `json`, `<｜tool▁call▁end｜>…<｜tool▁calls▁end｜>`. V3.1: without `function` and the fence.
- Kimi K2: `<|tool_calls_section_begin|><|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}
  <|tool_call_end|>…<|tool_calls_section_end|>`.
"""

import re
from typing import NamedTuple

from millrace_runtime.chat.parsers.json_value import JsonValue
from millrace_runtime.chat.parsers.reader import SPACE, Markers, StateParser

_MAX_HEAD = 512
_BEHIND_ARGUMENTS = re.compile(r"[\s`]*", re.ASCII)


class CallMarkers(NamedTuple):
    """The markers of one format."""

    section: str
    call: str
    call_end: str
    section_end: str
    head: re.Pattern[str]
    """The text between `call` and the arguments: it has the group `name`, and perhaps `id`."""

    @property
    def texts(self) -> tuple[str, ...]:
        """All markers but those in a head."""
        return self[:4]


_DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")
DEEPSEEK_V3 = CallMarkers(*_DEEPSEEK, re.compile(r"\w+<｜tool▁sep｜>(?P<name>[\w.-]+)\s*```(?:json)?\s*"))
DEEPSEEK_V31 = CallMarkers(*_DEEPSEEK, re.compile(r"(?P<name>[\w.-]+)<｜tool▁sep｜>\s*"))
KIMI_K2 = CallMarkers(
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
    re.compile(r"\s*(?P<id>(?:functions\.)?(?P<name>[\w.-]+):\d+)\s*<\|tool_call_argument_begin\|>\s*"),
)


class NamedCallParser(StateParser):
    """Reads calls behind the marker of a section, or of a call. Whitespace behind them belongs to them."""

    def __init__(self, markers: CallMarkers) -> None:
        super().__init__(self._read_content)
        self._markers = markers
        self._openings = Markers(markers.section, markers.call)
        self._call = Markers(markers.call)
        self._head_end = Markers("{", markers.section, markers.call)
        self._closings = Markers(markers.call, markers.call_end, markers.section_end)
        self._head = ""
        self._arguments = JsonValue()

    def _read_content(self) -> bool:
        content, marker = self._reader.take_before(self._openings)
        self._out.add_content(content)
        return self._open(marker)

    def _open(self, marker: str) -> bool:
        self._held = [marker]
        if marker == self._markers.section:
            return self._go(self._expect_call)
        return bool(marker) and self._go(self._read_head)

    def _expect_call(self) -> bool:
        self._hold(SPACE)
        if self._reader.is_undecided(self._call) or self._reader.waits:
            return False
        marker = self._reader.take_marker(self._call)
        self._held.append(marker)
        return self._go(self._read_head) if marker else self._release(self._read_content)

    def _read_head(self) -> bool:
        text, marker, is_over = self._reader.take_within(self._head_end, _MAX_HEAD - len(self._head))
        self._head += text
        if not is_over:
            return False
        head, self._head = self._head, ""
        found = self._markers.head.fullmatch(head) if marker else None
        if found is None:
            self._held.append(head)
            self._release(self._read_content)
            if marker in {"", "{"}:
                self._out.add_content(marker)
                return True
            return self._open(marker)  # of two openings the first was only a mention
        self._held = []
        self._out.begin_call(found["name"], found.groupdict().get("id"))
        self._out.add_arguments(marker)
        self._arguments = JsonValue(depth=1)
        return self._go(self._read_arguments)

    def _read_arguments(self) -> bool:
        self._out.add_arguments(self._arguments.take(self._reader))
        is_over = self._arguments.is_ended or self._arguments.is_broken
        return is_over and self._go(self._expect_closing)

    def _expect_closing(self) -> bool:
        self._reader.take(_BEHIND_ARGUMENTS)
        if self._reader.is_undecided(self._closings) or self._reader.is_empty:
            return False
        marker = self._reader.take_marker(self._closings)
        if marker == self._markers.call:
            self._held = [marker]
            return self._go(self._read_head)
        return self._go(self._expect_closing if marker == self._markers.call_end else self._skip_space)

    def _skip_space(self) -> bool:
        self._reader.take(SPACE)
        return not self._reader.is_empty and self._go(self._read_content)
