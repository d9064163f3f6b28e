"""Patterns that say the same as others: without look-ahead, or as names of properties. Pure."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_ONLY = re.compile(r"\^?(\[(?:\\.|[^\\\]])+\]|\\[dswDSW])([*+])\$")
"""The inside of a `(?!…)` that excludes the texts of some letters: their class, and `*` or `+`."""
_LOOK_AROUND = ("(?=", "(?!", "(?<=", "(?<!")
_ZODS = {
    "duration": r"^P(?:(\d+W)|(?!.*W)",
    "email": r"^(?!\.)(?!.*\.\.)",
    "hostname": r"^(?=.{1,253}\.?$)",
}
"""The beginnings of zod's patterns with look-around, by the format beside them."""
_DATE, _TIME = r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])", r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d"
_ZONE = r"(\.\d+)?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)"
_NAME_FORMATS = {
    "date": _DATE,
    "date-time": f"{_DATE}[Tt ]{_TIME}{_ZONE}",
    "time": f"{_TIME}{_ZONE}",
    "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
}
"""Patterns of the formats that keys may have: pydantic publishes dates and UUIDs as keys."""


class _Letter(NamedTuple):
    """A character of a pattern that is neither escaped nor in a class."""

    place: int
    text: str
    depth: int
    """How many groups are open before it."""


def split_pattern(pattern: str) -> list[str]:
    """Return patterns that a text meets exactly if it meets this one: `^(?=a)b` is `^(?:a)` and `^b`.

    A look-ahead that can't be taken out stays.
    """
    letters = list(_read(pattern))
    if not pattern.startswith("^") or any(letter.text == "|" and not letter.depth for letter in letters):
        return [pattern]
    found, begin = [], 1
    while pattern.startswith(("(?=", "(?!"), begin):
        closing = (one.place for one in letters if one.text == ")" and one.depth == 1 and one.place > begin)
        end = next(closing, begin)
        written = _write(pattern[begin + 2], pattern[begin + 3 : end])
        if end == begin or written is None:
            return [pattern]
        found.append(written)
        begin = end + 1
    return [f"^{pattern[begin:]}", *found]


def has_look_around(pattern: str) -> bool:
    """Whether a pattern looks ahead or behind, which a grammar can't."""
    return any(
        letter.text == "(" and pattern.startswith(_LOOK_AROUND, letter.place) for letter in _read(pattern)
    )


def is_zods(pattern: str, name: str) -> bool:
    """Whether a pattern is one of zod's, which says no more than the format of this name."""
    return name in _ZODS and pattern.startswith(_ZODS[name])


def _write(kind: str, inner: str) -> str | None:
    if kind == "=":
        return f"^(?:{inner})"
    if not (only := _ONLY.fullmatch(inner)):
        return None
    others = f"[^{only[1]}]" if only[1].startswith("\\") else _negate(only[1])
    return others if only[2] == "*" else f"^$|{others}"


def _negate(letters: str) -> str:
    return f"[{letters[2:]}" if letters.startswith("[^") else f"[^{letters[1:]}"


def _read(pattern: str) -> Iterator[_Letter]:
    """Yield the characters that may be operators."""
    depth, place, is_class = 0, 0, False
    while place < len(pattern):
        text = pattern[place]
        if text == "\\":
            place += 1
        elif is_class:
            is_class = text != "]"
        else:
            is_class = text == "["
            yield _Letter(place, text, depth)
            depth += (text == "(") - (text == ")")
        place += 1


def write_name_pattern(names: Mapping[str, Any]) -> str | None:
    """Return the pattern of a property's name; nothing: any name; None: it can't be written."""
    match names:
        case {"pattern": str(pattern), **others} if others.keys() <= {"format"}:
            return pattern if split_pattern(pattern) == [pattern] else None
        case {"format": str(name), **others} if not others:
            return f"^{_NAME_FORMATS[name]}$" if name in _NAME_FORMATS else ""
        case _ if names.keys() <= {"minLength", "maxLength"}:
            low, high = str(names.get("minLength", 0)), str(names.get("maxLength", ""))
            if low.isdecimal() and (high.isdecimal() or not high):
                return f"^(?s:.{{{low},{high}}})$" if low != "0" or high else ""
    return None
