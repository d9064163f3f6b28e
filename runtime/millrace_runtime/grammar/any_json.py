r"""Writes the grammars of any JSON, and of texts in which the JSON of calls is well-formed. Pure.

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


_MARKERS: Mapping[str, tuple[str, ...]] = {
    "deepseek_v31": ("<｜tool▁sep｜>",),
    "granite": ("<|tool_call|>",),
    "hermes": ("<tool_call>",),
    "internlm": ("<|plugin|>",),
    "kimi_k2": ("<|tool_call_argument_begin|>",),
    "mistral": ("[ARGS]", "[TOOL_CALLS]"),
    "nemotron": ("<TOOLCALL>",),
    "phi4_mini": ("<|tool_call|>",),
}
"""Behind which token a format has JSON; of several the first that the tokenizer has. The other formats have
none, or no token before it."""
_GAP = r"/[ \n]{1,8}/?"
_OTHER = r"/[ \n]{0,8}[^ \n{\[](.|\n)*/"
"""Text that does not begin as an object or a list."""


def write_well_formed(tool_format: str, lark: LarkWriter) -> str | None:
    """Return the grammar of any text in which the JSON of calls is well-formed.

    No client asked for it, so it binds nothing else: the model chooses names, keys and their order, and what
    it writes behind a marker may be no JSON. The parser reads the same with this grammar and without it.
    Returns None for a format that has no token before its JSON.
    """
    marker = next(filter(lark.knows, _MARKERS.get(tool_format, ())), None)
    if marker is None:
        return None
    free, mark = lark.without(marker), lark.mark(marker)
    # A token may hold the end of the JSON and more, which only an expression of text can take.
    json = f"{_GAP} {write_any_json(lark)} ANY"
    tokens = lark.tokens(without=(marker,))
    behind = f"({json} | {_OTHER} | {tokens})" if tokens else f"({json} | {_OTHER})"
    return lark.write(f"({free} ({mark})+ {behind})* {free} (({mark})+ {_GAP})?")
