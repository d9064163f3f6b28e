"""Llama 3.1 to 3.3: a whole answer of objects, perhaps behind `<|python_tag|>`, apart by `;` or newlines."""

import re

from millrace_runtime.chat.parsers.json_call import JsonFormatParser
from millrace_runtime.chat.parsers.parameter_types import Tools
from millrace_runtime.chat.parsers.reader import SPACE, Markers

_TAG = Markers("<|python_tag|>")
_BETWEEN_CALLS = re.compile(r"[\s;]*", re.ASCII)


class Llama3Parser(JsonFormatParser):
    """Reads objects as long as they are calls. From the first other text on all is content.

    No marker says that an object is a call, so one with a foreign key before its arguments is none, and
    nor is one with another name than a tool's.
    """

    def __init__(self, tools: Tools) -> None:
        super().__init__(self._expect_tag)
        self._names = frozenset(str(tool["function"]["name"]) for tool in tools)

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
        )

    def _skip_between(self) -> bool:
        self._reader.take(_BETWEEN_CALLS)
        return not self._reader.is_empty and self._go(self._expect_tag)

    def _read_content(self) -> bool:
        self._out.add_content(self._reader.take_to(len(self._reader.text)))
        return False
