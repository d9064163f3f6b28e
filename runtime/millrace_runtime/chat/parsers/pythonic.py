"""Calls as Python writes them: in a list `[f(a=1, b="x"), g()]`, or each in a line of its own."""

import re
from collections.abc import Sequence

from millrace_runtime.chat.parsers.answer import Call
from millrace_runtime.chat.parsers.line_call import FENCE, LineParser
from millrace_runtime.chat.parsers.parameter_types import Tools
from millrace_runtime.chat.parsers.python_call import BracketScanner, read_calls
from millrace_runtime.chat.parsers.reader import MAX_HELD, SPACE, Markers, StateParser

PYTHONIC = ("<|python_start|>", "<|python_end|>")
"""The markers that may stand around lists of calls."""
MINICPM3 = ("<|tool_call_start|>", "<|tool_call_end|>")
"""The markers around calls."""
_TOOL_CODE = Markers("tool_code\n")
_PYTHON = re.compile(r"```(?:python|tool_code)\b")


class PythonicParser(LineParser):
    """Llama 3.2 and 4, ToolACE, and Gemma 3 with a template for it: lists, perhaps in a fence of `tool_code`.

    A list of calls of tools alone is calls, all of them.
    """

    def __init__(self, tools: Tools) -> None:
        """`tools` are the request's."""
        tag, closing = PYTHONIC
        super().__init__(tools, tag=tag, closing=closing)

    def _open_fence(self) -> bool:
        if self._reader.is_undecided(_TOOL_CODE) or self._reader.waits:
            return False
        self._held.append(code := self._reader.take_marker(_TOOL_CODE))
        self._is_call_fence = code != ""
        return self._go(self._expect_line if code else self._leave_line)

    def _expect_call(self) -> bool:
        if self._reader.peek() != "[":
            return self._leave_line()
        self._held.append(self._reader.take_letter())
        return self._begin_name()

    def _expect_value(self) -> bool:
        return self._begin_value(BracketScanner("]")) if self._reader.peek() == "(" else self._leave_line()

    def _end_value(self) -> bool:
        self._held.append(self._reader.take_letter())
        return super()._end_value()

    def _list_calls(self, value: str) -> Sequence[Call]:
        return read_calls(f"{self._name}{value}", self._names)


class MiniCpm3Parser(StateParser):
    """MiniCPM 3: calls between two markers, in a fence of Python. They are held until the second one."""

    def __init__(self, tools: Tools) -> None:
        """`tools` are the request's."""
        super().__init__(self._read_content)
        self._names = frozenset(str(tool["function"]["name"]) for tool in tools)
        self._opening, self._closing = map(Markers, MINICPM3)
        self._num_held = 0

    def _read_content(self) -> bool:
        content, marker = self._reader.take_before(self._opening)
        self._out.add_content(content)
        self._held, self._num_held = [marker], 0
        return bool(marker) and self._go(self._read_calls)

    def _read_calls(self) -> bool:
        text, marker = self._reader.take_before(self._closing)
        self._held.append(text)
        self._num_held += len(text)
        if self._num_held > MAX_HELD:
            self._held.append(marker)
            return self._release(self._read_content)
        if not marker and not self._reader.has_ended:
            return False
        calls = read_calls(_unwrap("".join(self._held[1:])), self._names)
        if not calls:
            self._held.append(marker)
            return self._release(self._read_content)
        self._held = []
        self._out.add_calls(calls)
        return self._go(self._skip_space)

    def _skip_space(self) -> bool:
        self._reader.take(SPACE)
        return not self._reader.is_empty and self._go(self._read_content)


def _unwrap(text: str) -> str:
    """Return the calls of a text. They may stand in a fence, and in a list."""
    calls = text.strip()
    if fence := _PYTHON.match(calls):
        calls = calls[fence.end() :].removesuffix(FENCE).strip()
    return calls[1:-1].strip() if calls.startswith("[") and calls.endswith("]") else calls
