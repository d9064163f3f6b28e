"""Calls as Python writes them: `[f(a=1, b="x"), g()]`, or each in a line of its own.

- `pythonic`, of Llama 3.2 and 4, ToolACE and Gemma 3 with a template for it: a list that begins the answer or
  a line. No marker says that it is a call, so its first name is a tool's.
- MiniCPM 3: `<|tool_call_start|>`, calls in a fence of Python, `<|tool_call_end|>`.
"""

import json
import re
from typing import NamedTuple

from millrace_runtime.chat.parsers.parameter_types import Tools, read_word
from millrace_runtime.chat.parsers.reader import MAX_NAME, SPACE, Markers, State, StateParser

_FENCE = Markers("```tool_code", "```python")
_FENCE_END = "```"
_NAME = re.compile(r"[\w.-]*", re.ASCII)
_NAME_BEGIN = re.compile(r"\w", re.ASCII)
_KEY = re.compile(r"[^\s=:,()\[\]{}\"'<]*")
_WORD = re.compile(r"[^,()\[\]{}\"'<]*")
"""A value without quotes. Templates show models their earlier texts so, with spaces in them."""
_BETWEEN = re.compile(r"[\s,;]*", re.ASCII)
_INSIDE = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}
_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_CUT_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]?|u[0-9a-fA-F]{0,3}|U[0-9a-fA-F]{0,7})?\Z")
_JSON_ESCAPES = {letter: f"\\{letter}" for letter in '"\\nrtbf'} | {"'": "'", "/": "/", "\n": ""}
_MAX_LETTER = 0x10FFFF


class PythonMarkers(NamedTuple):
    """The markers of one format."""

    openings: tuple[str, ...]
    """What may stand before calls."""
    closings: tuple[str, ...]
    begins_lines: bool
    """Whether a list that begins a line is of calls, without an opening."""

    @property
    def texts(self) -> tuple[str, ...]:
        """All markers."""
        return self.openings + self.closings


PYTHONIC = PythonMarkers(("<|python_start|>", "<|python_tag|>"), ("<|python_end|>",), begins_lines=True)
MINICPM3 = PythonMarkers(("<|tool_call_start|>",), ("<|tool_call_end|>",), begins_lines=False)


class _Bracket(NamedTuple):
    """An open bracket: what ends it, and what ends it in JSON."""

    end: str
    json_begin: str
    json_end: str


_CALL = _Bracket(")", "{", "}")
_BRACKETS = {"[": _Bracket("]", "[", "]"), "(": _Bracket(")", "[", "]"), "{": _Bracket("}", "{", "}")}


class PythonicParser(StateParser):
    """Reads calls, and writes their arguments as JSON as they come. Whitespace behind calls belongs to them.

    What is wrong in the arguments ends a call; from there on the text is content.
    """

    def __init__(self, markers: PythonMarkers, tools: Tools) -> None:
        """`tools` are the request's."""
        super().__init__(self._expect_opening if markers.begins_lines else self._read_content)
        self._names = frozenset(str(tool["function"]["name"]) for tool in tools)
        self._begins_lines = markers.begins_lines
        self._opening = Markers(*markers.openings)
        self._line_end = Markers("\n", *markers.openings) if markers.begins_lines else self._opening
        self._closing = Markers(*markers.closings)
        self._fenced_closing = Markers(*markers.closings, _FENCE_END)
        self._is_fenced = self._is_list = False
        self._word = ""
        """A name, a key or a value without quotes, up to here."""
        self._open: list[_Bracket] = []
        self._comma = ""
        """What stands before the next item."""
        self._quote = ""
        self._behind_string: State = self._expect_item

    def _read_content(self) -> bool:
        content, marker = self._reader.take_before(self._line_end)
        self._out.add_content(content)
        if marker == "\n":
            self._out.add_content(marker)
            return self._go(self._begin_line)
        self._held = [marker]
        return bool(marker) and self._go(self._expect_fence)

    def _begin_line(self) -> bool:
        if self._reader.waits:
            return False
        return self._go(self._expect_fence if self._reader.peek() in {"[", "`"} else self._read_content)

    def _expect_opening(self) -> bool:
        self._hold(SPACE)
        if self._reader.is_undecided(self._opening):
            return False
        self._held.append(self._reader.take_marker(self._opening))
        return self._go(self._expect_fence)

    def _expect_fence(self) -> bool:
        self._hold(SPACE)
        if self._reader.is_undecided(_FENCE) or self._reader.waits:
            return False
        fence = self._reader.take_marker(_FENCE)
        self._held.append(fence)
        self._is_fenced = fence != ""
        return self._go(self._expect_list)

    def _expect_list(self) -> bool:
        self._hold(SPACE)
        if self._reader.waits:
            return False
        self._is_list = self._reader.peek() == "["
        if self._is_list:
            self._held.append(self._reader.take_letter())
        elif self._begins_lines:
            return self._release(self._read_content)
        return self._go(self._expect_name)

    def _expect_name(self) -> bool:
        self._hold(SPACE)
        self._word = ""
        return not self._reader.waits and self._go(self._read_name)

    def _read_name(self) -> bool:
        self._word += self._hold(_NAME)
        if self._reader.waits and len(self._word) <= MAX_NAME:
            return False
        if self._word not in self._names or self._reader.peek() != "(":
            return self._release(self._read_content)
        self._held = []
        self._out.begin_call(self._word)
        return self._open_bracket(_CALL)

    def _open_bracket(self, bracket: _Bracket) -> bool:
        self._reader.take_letter()
        self._open.append(bracket)
        self._out.add_arguments(bracket.json_begin)
        self._comma = ""
        return self._go(self._expect_item)

    def _expect_item(self) -> bool:
        self._reader.take(_BETWEEN)
        if self._reader.is_empty:
            return False
        self._word = ""
        bracket = self._open[-1]
        if self._reader.peek() == bracket.end:
            return self._close_bracket()
        if bracket is _CALL:
            return self._go(self._read_key)
        self._out.add_arguments(self._comma)
        return self._go(self._expect_dict_key if bracket.end == "}" else self._expect_value)

    def _close_bracket(self) -> bool:
        self._reader.take_letter()
        self._out.add_arguments(self._open.pop().json_end)
        self._comma = ", "
        return self._go(self._expect_item if self._open else self._expect_next)

    def _read_key(self) -> bool:
        self._word += self._reader.take(_KEY)
        if self._reader.waits and len(self._word) <= MAX_NAME:
            return False
        return self._go(self._expect_equals) if 0 < len(self._word) <= MAX_NAME else self._break()

    def _expect_equals(self) -> bool:
        self._reader.take(SPACE)
        if self._reader.waits:
            return False
        if self._reader.peek() != "=":
            return self._break()
        self._reader.take_letter()
        self._out.add_arguments(f"{self._comma}{_to_json(self._word)}: ")
        self._word = ""
        return self._go(self._expect_value)

    def _expect_dict_key(self) -> bool:
        if self._reader.peek() not in _INSIDE:
            return self._break()
        return self._open_string(self._expect_colon)

    def _expect_colon(self) -> bool:
        self._reader.take(SPACE)
        if self._reader.waits:
            return False
        if self._reader.peek() != ":":
            return self._break()
        self._reader.take_letter()
        self._out.add_arguments(": ")
        return self._go(self._expect_value)

    def _expect_value(self) -> bool:
        self._reader.take(SPACE)
        if self._reader.is_empty:
            return False
        letter = self._reader.peek()
        if letter in _INSIDE:
            return self._open_string(self._expect_item)
        bracket = _BRACKETS.get(letter)
        return self._go(self._read_word) if bracket is None else self._open_bracket(bracket)

    def _open_string(self, behind: State) -> bool:
        self._quote, self._behind_string = self._reader.take_letter(), behind
        self._out.add_arguments('"')
        return self._go(self._read_string)

    def _read_string(self) -> bool:
        text = self._reader.take(_INSIDE[self._quote])
        self._out.add_arguments(_to_json(text)[1:-1])
        if self._reader.is_empty:
            return False
        if self._reader.peek() == "\\":
            return self._read_escape()
        self._reader.take_letter()
        self._out.add_arguments('"')
        self._comma = ", "
        return self._go(self._behind_string)

    def _read_escape(self) -> bool:
        """Read an escape. One that the answer's end cuts is left out."""
        if _CUT_ESCAPE.match(self._reader.text, self._reader.place):
            if self._reader.has_ended:
                self._reader.take_to(len(self._reader.text))
            return False
        self._out.add_arguments(_convert_escape(self._reader.take(_ESCAPE)))
        return True

    def _read_word(self) -> bool:
        self._word += self._reader.take(_WORD)
        if self._reader.is_empty and len(self._word) <= MAX_NAME:
            return False
        is_over = self._reader.peek() in {",", self._open[-1].end}
        if len(self._word) > MAX_NAME or not is_over or not self._word.strip():
            return self._break()
        self._out.add_arguments(read_word(self._word) or _to_json(self._word.strip()))
        self._comma = ", "
        return self._go(self._expect_item)

    def _break(self) -> bool:
        self._out.add_content(self._word)
        self._open = []
        return self._go(self._read_content)

    def _expect_next(self) -> bool:
        """Expect another call, or the end of the list or of the lines."""
        self._reader.take(_BETWEEN)
        if self._reader.is_empty:
            return False
        if self._is_list and self._reader.peek() == "]":
            self._reader.take_letter()
            self._is_list = False
            return self._go(self._expect_closing)
        is_more = self._is_list or (not self._begins_lines and _NAME_BEGIN.match(self._reader.peek()))
        return self._go(self._expect_name if is_more else self._expect_closing)

    def _expect_closing(self) -> bool:
        self._reader.take(SPACE)
        closing = self._fenced_closing if self._is_fenced else self._closing
        if self._reader.is_undecided(closing) or self._reader.is_empty:
            return False
        if marker := self._reader.take_marker(closing):
            self._is_fenced = self._is_fenced and marker != _FENCE_END
            return True
        self._held = []
        return self._go(self._expect_opening if self._begins_lines else self._read_content)


def _convert_escape(escape: str) -> str:
    """Return an escape of Python as JSON has it. Python keeps the backslash of an unknown one."""
    kind, digits = escape[1], escape[2:]
    if not digits:
        return _JSON_ESCAPES.get(kind, "\\\\" + _to_json(kind)[1:-1])
    code = int(digits, 16)
    if kind == "U":
        return _to_json(chr(min(code, _MAX_LETTER)))[1:-1]
    return f"\\u{code:04x}"


def _to_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
