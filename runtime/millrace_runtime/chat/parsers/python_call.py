"""Reads calls as Python writes them, `f(a=1, b="x")`, whose values are literals or words of JSON. Pure."""

import ast
import json
import re
import warnings
from collections.abc import Collection
from typing import Any

from millrace_runtime.chat.parsers.answer import Call
from millrace_runtime.chat.parsers.reader import SPACE, Markers, TextReader

NAME = re.compile(r"[\w.-]*", re.ASCII)
_KEY = re.compile(r"[^\s=:,()\[\]{}\"'<#\\]+")
"""A key, as our grammars write it. Python allows fewer, but a property may be called `from`."""
_BETWEEN = re.compile(r"\s*(?:[,;\n]\s*|\Z)", re.ASCII)
_OUTSIDE = re.compile(r"[^\"'()\[\]{},#\\]*")
_TRIPLE = Markers('"""', "'''")
_INSIDE = {
    quote: re.compile(rf"(?:[^{quote}\\\n]|\\.)*+", re.DOTALL) for quote in ('"', "'")
} | {
    quote * 3: re.compile(rf"(?:{quote}{{0,2}}(?:[^{quote}\\]|\\.))*+", re.DOTALL) for quote in ('"', "'")
}  # fmt: skip
"""The inside of a string, up to its end. A quote counts once the letter behind it is there."""
_MAX_DEPTH = 64
_WORDS = {"true": True, "false": False, "null": None}
_SURROGATE = re.compile("[\ud800-\udfff]")


class BracketScanner:
    """Finds where an item between brackets ends. Strings may have anything in them.

    It counts brackets and does not compare them: `read_calls` does.
    """

    def __init__(self, ends: str) -> None:
        """`ends` are the letters of which one ends the item, outside of inner brackets."""
        self._ends = ends
        self._depth = 0
        self._quote = ""
        """The quote that ends the open string; empty outside of strings."""
        self.is_ended = False
        """Whether one of the ends stands next."""
        self.is_broken = False
        """Whether this is no literal of Python."""

    def take(self, reader: TextReader) -> str:
        """Take the text up to the end."""
        begin = reader.place
        while self._read_string(reader) if self._quote else self._read_outside(reader):
            pass
        return reader.text[begin : reader.place]

    def _read_outside(self, reader: TextReader) -> bool:
        reader.take(_OUTSIDE)
        letter = reader.peek()
        if letter and letter in "\"'":
            return self._open_string(reader)
        self.is_ended = letter != "" and self._depth == 0 and letter in self._ends
        if not letter or self.is_ended:
            return False
        self._depth += (letter in "([{") - (letter in ")]}")
        self.is_broken = letter in "#\\" or not 0 <= self._depth <= _MAX_DEPTH
        return not self.is_broken and reader.take_letter() != ""

    def _open_string(self, reader: TextReader) -> bool:
        if reader.is_undecided(_TRIPLE):
            return False
        self._quote = reader.take_marker(_TRIPLE) or reader.take_letter()
        return True

    def _read_string(self, reader: TextReader) -> bool:
        reader.take(_INSIDE[self._quote])
        if not reader.text.startswith(self._quote, reader.place):
            self.is_broken = reader.peek() == "\n"
            return False
        reader.take_to(reader.place + len(self._quote))
        self._quote = ""
        return True


def read_calls(text: str, names: Collection[str]) -> list[Call]:
    """Return the calls that a text is, of these functions; none if it is something else."""
    reader, calls = TextReader(), []
    reader.feed(text)
    reader.has_ended = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of escapes that it does not know
        try:
            while not reader.is_empty:
                calls.append(_read_call(reader, names))
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return []
    return calls


def _read_call(reader: TextReader, names: Collection[str]) -> Call:
    """Raise ValueError, or what Python raises, for what is no call."""
    name = reader.take(NAME)
    if name not in names or reader.take_letter() != "(":
        raise ValueError("no call of a tool")
    arguments = json.dumps(_read_arguments(reader), ensure_ascii=False, allow_nan=False)
    place = reader.place
    reader.take(_BETWEEN)
    if reader.place == place and not reader.is_empty:
        raise ValueError("nothing between two calls")
    return Call(name, _SURROGATE.sub(_escape, arguments))


def _read_arguments(reader: TextReader) -> dict[str, Any]:
    found: dict[str, Any] = {}
    reader.take(SPACE)
    while reader.peek() != ")":
        key = reader.take(_KEY)
        reader.take(SPACE)
        if not key or key in found or reader.take_letter() != "=":
            raise ValueError("no argument")
        scanner = BracketScanner(",)")
        value = scanner.take(reader)
        if not scanner.is_ended or not value.strip():
            raise ValueError("no value")
        found[key] = _read_literal(ast.parse(f"({value})", mode="eval").body)
        if reader.peek() == ",":
            reader.take_letter()
        reader.take(SPACE)
    reader.take_letter()
    return found


def _read_literal(node: ast.expr) -> Any:
    """Return the value of a literal that JSON has, too. Nothing is computed but a number's sign."""
    match node:
        case ast.Constant(value=str() | bool() | int() | float() | None as value):
            return value
        case ast.Name(id=word) if word in _WORDS:
            return _WORDS[word]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_read_literal(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_read_key(key): _read_literal(value) for key, value in zip(keys, values, strict=True)}
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=ast.Constant(value=int() | float())):
            return ast.literal_eval(node)
    raise ValueError("no literal")


def _read_key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise ValueError("JSON has no other keys than strings")


def _escape(letter: re.Match[str]) -> str:
    """Return half a letter as JSON has it, which no encoding has: a client joins it with its other half."""
    return f"\\u{ord(letter[0]):04x}"
