r"""Writes the grammar of any JSON object, as RFC 8259 has it. Pure.

The library's own `%json` takes no escape such as `\u00e9` for a letter that needs none, although models
write some: their letters would become others.
"""

from collections.abc import Mapping
from typing import Any

from millrace_runtime.grammar.lark import LarkWriter

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
"""The schema of such an object."""
_SPACE = r"/[ \t\r\n]{1,64}/?"
_STRING = r'/"(\\(["\\\/bfnrt]|u[0-9a-fA-F]{4})|[^"\\\x00-\x1f])*"/'
_PYTHON_STRING = r'/"(\\(["\\bfnrt]|u[0-9a-fA-F]{4})|[^"\\\x00-\x1f])*"/'
_NUMBER = r"/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/"


def write_any_object(lark: LarkWriter) -> str:
    """Return the expression of an object."""
    return _write_values(lark)[1]


def write_any_json(lark: LarkWriter) -> str:
    """Return the expression of an object or a list."""
    _, members, items = _write_values(lark)
    return f"({members} | {items})"


def write_any_value(lark: LarkWriter) -> str:
    r"""Return the expression of any value that is the same in Python, which does not know the escape `\/`."""
    return _write_values(lark, _PYTHON_STRING)[0]


def _write_values(lark: LarkWriter, string: str = _STRING) -> tuple[str, str, str]:
    """Return the expressions of a value, of an object and of a list."""
    string = lark.add("STRING", string)
    value = lark.reserve("value")
    pair = lark.add("pair", f'{string} {_SPACE} ":" {_SPACE} {value}')
    members = lark.add("object", _enclose("{", pair, "}"))
    items = lark.add("array", _enclose("[", value, "]"))
    number = lark.add("NUMBER", _NUMBER)
    lark.define(value, f'{string} | {number} | {members} | {items} | "true" | "false" | "null"')
    return value, members, items


def _enclose(opening: str, item: str, closing: str) -> str:
    more = f'({_SPACE} "," {_SPACE} {item})*'
    return f'"{opening}" {_SPACE} ({item} {more} {_SPACE})? "{closing}"'
