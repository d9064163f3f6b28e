"""Gemma's calls: FunctionGemma's `<start_function_call>call:name{key:<escape>text<escape>,count:1}
<end_function_call>`, and Gemma 4's with other markers.

Keys have no quotes, strings have a marker on both sides; objects and lists are as in JSON.
"""

import json
import re
from typing import NamedTuple

from millrace_runtime.chat.parsers.parameter_types import read_word
from millrace_runtime.chat.parsers.reader import MAX_NAME, SPACE, Markers, StateParser

_BETWEEN_ITEMS = re.compile(r"[\s,]*", re.ASCII)
_PREFIX = Markers("call:")
_NAME = re.compile(r"[\w.-]*", re.ASCII)
_WORD = re.compile(r"[^:,{}\[\]<]*")
_CLOSING_OF = {"{": "}", "[": "]"}


class GemmaMarkers(NamedTuple):
    """The markers of a generation of Gemma."""

    opening: str
    closing: str
    quote: str


FUNCTION_GEMMA = GemmaMarkers("<start_function_call>", "<end_function_call>", "<escape>")
GEMMA4 = GemmaMarkers("<|tool_call>", "<tool_call|>", '<|"|>')


class GemmaParser(StateParser):
    """Reads calls, and writes their arguments as JSON as they come. Whitespace behind a call belongs to it.

    What is wrong in its arguments ends a call; from there on the text is content.
    """

    def __init__(self, markers: GemmaMarkers) -> None:
        super().__init__(self._read_content)
        self._opening, self._closing, self._quote = (Markers(marker) for marker in markers)
        self._word = ""
        """A name, a key or a value without quotes, up to here."""
        self._open: list[str] = []
        """The closing brackets of the objects and lists that are open."""
        self._comma = ""
        """The comma before the next item, if it is not the first."""

    def _read_content(self) -> bool:
        content, marker = self._reader.take_before(self._opening)
        self._out.add_content(content)
        self._held = [marker]
        return bool(marker) and self._go(self._expect_prefix)

    def _expect_prefix(self) -> bool:
        self._hold(SPACE)
        if self._reader.is_undecided(_PREFIX) or self._reader.waits:
            return False
        marker = self._reader.take_marker(_PREFIX)
        self._held.append(marker)
        self._word = ""
        return self._go(self._read_name) if marker else self._release(self._read_content)

    def _read_name(self) -> bool:
        self._word += self._hold(_NAME)
        if self._reader.waits and len(self._word) <= MAX_NAME:
            return False
        if not (0 < len(self._word) <= MAX_NAME and self._reader.peek() == "{"):
            return self._release(self._read_content)
        self._held = []
        self._out.begin_call(self._word)
        return self._open_bracket()

    def _open_bracket(self) -> bool:
        letter = self._reader.take_letter()
        self._open.append(_CLOSING_OF[letter])
        self._out.add_arguments(letter)
        self._comma = ""
        return self._go(self._expect_item)

    def _expect_item(self) -> bool:
        self._reader.take(_BETWEEN_ITEMS)
        if self._reader.is_empty:
            return False
        if self._reader.peek() == self._open[-1]:
            return self._close_bracket()
        self._word = ""
        if self._open[-1] == "}":
            return self._go(self._expect_key)
        self._out.add_arguments(self._comma)
        return self._go(self._expect_value)

    def _close_bracket(self) -> bool:
        self._reader.take_letter()
        self._out.add_arguments(self._open.pop())
        self._comma = ", "
        return self._go(self._expect_item if self._open else self._expect_closing)

    def _expect_key(self) -> bool:
        if self._reader.is_undecided(self._quote):
            return False
        is_quoted = bool(self._reader.take_marker(self._quote))
        return self._go(self._read_quoted_key if is_quoted else self._read_key)

    def _read_quoted_key(self) -> bool:
        text, marker, is_over = self._reader.take_within(self._quote, MAX_NAME - len(self._word))
        self._word += text
        return is_over and (self._go(self._read_colon) if marker else self._break())

    def _read_key(self) -> bool:
        self._word += self._reader.take(_WORD)
        if self._reader.waits and len(self._word) <= MAX_NAME:
            return False
        self._word = self._word if len(self._word) > MAX_NAME else self._word.strip().strip('"')
        return self._go(self._read_colon)

    def _read_colon(self) -> bool:
        self._reader.take(SPACE)
        if self._reader.waits:
            return False
        if self._reader.peek() != ":" or not 0 < len(self._word) <= MAX_NAME:
            return self._break()
        self._reader.take_letter()
        self._out.add_arguments(f"{self._comma}{_to_json(self._word)}: ")
        self._word = ""
        return self._go(self._expect_value)

    def _expect_value(self) -> bool:
        self._reader.take(SPACE)
        if self._reader.is_undecided(self._quote) or self._reader.is_empty:
            return False
        if self._reader.take_marker(self._quote):
            self._out.add_arguments('"')
            return self._go(self._read_string)
        return self._open_bracket() if self._reader.peek() in _CLOSING_OF else self._go(self._read_word)

    def _read_string(self) -> bool:
        text, marker = self._reader.take_before(self._quote)
        self._out.add_arguments(_to_json(text)[1:-1] + ('"' if marker else ""))
        self._comma = ", "
        return bool(marker) and self._go(self._expect_item)

    def _read_word(self) -> bool:
        self._word += self._reader.take(_WORD)
        if self._reader.is_empty and len(self._word) <= MAX_NAME:
            return False
        if len(self._word) > MAX_NAME or self._reader.peek() not in {",", "}", "]"}:
            return self._break()
        self._out.add_arguments(read_word(self._word) or _to_json(self._word.strip()))
        self._comma = ", "
        return self._go(self._expect_item)

    def _break(self) -> bool:
        self._out.add_content(self._word)
        self._open = []
        return self._go(self._read_content)

    def _expect_closing(self) -> bool:
        self._reader.take(SPACE)
        if self._reader.is_undecided(self._closing) or self._reader.is_empty:
            return False
        is_closed = bool(self._reader.take_marker(self._closing))
        return self._go(self._skip_space if is_closed else self._read_content)

    def _skip_space(self) -> bool:
        self._reader.take(SPACE)
        return not self._reader.is_empty and self._go(self._read_content)


def _to_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
