"""Finds the end of JSON in a text that is still written, and reads its strings."""

import json
import re

from millrace_runtime.chat.parsers.reader import TextReader

_OUTSIDE_STRINGS = re.compile(r'[^"{}\[\]<]*')
"""JSON has no `<` outside strings. There it is a marker, and the value is broken."""
INSIDE_STRING = re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
"""An escape is taken whole, but for the digits behind `\\u`."""
_CUT_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:u[0-9a-fA-F]{0,3})?\Z")
"""An escape at a cut string's end that wants more letters, and the escaped backslashes before it."""

_CUT_PAIR = re.compile(r"(?<!\\)((?:\\\\)*)\\u[dD][89abAB][0-9a-fA-F]{2}\Z")


class JsonValue:
    """Finds the end of an object, a list or a string.

    It counts brackets and does not compare them: no nesting needs memory. A model's mistakes inside its
    arguments reach the client as they are.
    """

    def __init__(self, depth: int = 0) -> None:
        """`depth` is the number of brackets that are open already."""
        self._depth = depth
        self._is_in_string = False
        self.is_ended = False
        self.is_broken = False

    def take(self, reader: TextReader) -> str:
        """Take the text up to the value's end; at the answer's end all that is there."""
        text, place = reader.text, reader.place
        while not (self.is_ended or self.is_broken):
            pattern = INSIDE_STRING if self._is_in_string else _OUTSIDE_STRINGS
            place = _end_of(pattern, text, place)
            letter = text[place : place + 1]
            if not letter or letter == "\\":  # a backslash waits for what it escapes
                break
            self._pass(letter)
            place += not self.is_broken
        is_cut = reader.has_ended and not (self.is_ended or self.is_broken)
        return reader.take_to(len(text) if is_cut else place)

    def _pass(self, letter: str) -> None:
        if letter == '"':
            self._is_in_string = not self._is_in_string
        elif letter == "<":
            self.is_broken = True
        else:
            self._depth += 1 if letter in "{[" else -1
        self.is_ended = self._depth <= 0 and not self._is_in_string and not self.is_broken


def decode_string(text: str) -> str | None:
    """Return the string of a JSON text between quotes; None if it is no JSON, or no Unicode."""
    try:
        string = str(json.loads(f'"{text}"', strict=False))
        string.encode()  # a lone surrogate can't be sent
    except ValueError:
        return None
    return string


def mend_object(text: str) -> str | None:
    """Return the text of a JSON object; None if it is none.

    Models escape line breaks once too little where they write JSON into a string.
    """
    if not is_object(text):
        return None
    try:
        json.loads(text)
    except ValueError:
        return json.dumps(json.loads(text, strict=False), ensure_ascii=False)
    return text


def is_object(text: str) -> bool:
    """Whether a text is a JSON object."""
    try:
        return isinstance(json.loads(text, strict=False), dict)
    except (ValueError, RecursionError):
        return False


def decode_cut_string(text: str) -> str | None:
    """Return a string whose end is missing, without the escape, or the half of a pair, that is cut off."""
    return decode_string(_CUT_PAIR.sub(r"\1", _CUT_ESCAPE.sub(r"\1", text)))


def _end_of(pattern: re.Pattern[str], text: str, place: int) -> int:
    found = pattern.match(text, place)
    return found.end() if found else place
