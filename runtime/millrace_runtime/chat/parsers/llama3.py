"""Llama 3.1 to 3.3: objects, perhaps behind `<|python_tag|>`, apart by `;` or newlines.

Small models write prose before them, so an object may also begin any later line.
"""

import re

from millrace_runtime.chat.parsers.json_call import JsonFormatParser
from millrace_runtime.chat.parsers.parameter_types import Tools
from millrace_runtime.chat.parsers.reader import SPACE, Markers

_TAG = Markers("<|python_tag|>")
_LINE_END = Markers("\n", "<|python_tag|>")
_BETWEEN_CALLS = re.compile(r"[\s;]*", re.ASCII)


class Llama3Parser(JsonFormatParser):
    """Reads objects that begin the answer, a line of it, or what follows another call.

    No marker says that an object is a call, so one with a foreign key before its arguments is none, and
    nor is one with another name than a tool's. Behind prose one without arguments is none, too: it may as
    well be JSON that a user has asked for.
    """

    def __init__(self, tools: Tools) -> None:
        super().__init__(self._expect_tag)
        self._names = frozenset(str(tool["function"]["name"]) for tool in tools)
        self._is_in_prose = False

    def _expect_tag(self) -> bool:
        self._hold(SPACE)
        if self._reader.is_undecided(_TAG):
            return False
        self._held.append(self._reader.take_marker(_TAG))
        return self._go(self._expect_object)

    def _expect_object(self) -> bool:
        self._hold(SPACE)
        if self._reader.waits:
            return False
        if self._reader.peek() != "{":
            return self._release(self._read_content)
        opening, self._held = "".join(self._held), []
        return self._open_call(
            opening,
            behind_call=self._skip_between,
            behind_fault=self._read_content,
            names=self._names,
            needs_arguments=self._is_in_prose,
        )

    def _skip_between(self) -> bool:
        self._is_in_prose = False
        self._reader.take(_BETWEEN_CALLS)
        return not self._reader.is_empty and self._go(self._expect_tag)

    def _read_content(self) -> bool:
        self._is_in_prose = True
        content, marker = self._reader.take_before(_LINE_END)
        self._out.add_content(content)
        if marker == "\n":
            self._out.add_content(marker)
            return self._go(self._begin_line)
        self._held = [marker]
        return bool(marker) and self._go(self._expect_object)

    def _begin_line(self) -> bool:
        """An object is a call only where it begins its line: inside other JSON objects are indented."""
        if self._reader.waits:
            return False
        return self._go(self._expect_object if self._reader.peek() == "{" else self._read_content)
