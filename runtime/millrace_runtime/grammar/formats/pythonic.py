"""Writes calls as Python has them, whose arguments have keys without quotes, and JSON as values. Pure."""

import re
from collections.abc import Mapping

from millrace_runtime.grammar.any_json import write_any_value
from millrace_runtime.grammar.errors import GrammarError
from millrace_runtime.grammar.json_schema.places import ROOT, escape_key
from millrace_runtime.grammar.lark import LarkWriter, write_regex, write_text
from millrace_runtime.grammar.parameters import CallableTool, write_members, write_parameter

_COMMA = "/, ?/"
_KEY = r"[^\s=:,()\[\]{}\"'<#\\]+"
"""A key, as the parser reads it."""


def match_begin(tool: CallableTool) -> str:
    """Return the pattern of a call's beginning."""
    return rf"{tool.pattern}\("


def check_keys(tool: CallableTool) -> None:
    """Raise GrammarError for a property that no call in this format can have."""
    properties = tool.schema.get("properties")
    for key in properties if isinstance(properties, Mapping) else ():
        if not re.fullmatch(_KEY, key):
            raise GrammarError(
                f"in `{tool.name}`, `{ROOT}/properties/{escape_key(key)}`: this model writes calls as Python "
                "does, so the name of a property is one word: rename it"
            )


def write_call(lark: LarkWriter, tool: CallableTool) -> str:
    """Return the expression of a call."""
    return f"{write_regex(match_begin(tool))} {write_rest(lark, tool)}"


def write_rest(lark: LarkWriter, tool: CallableTool) -> str:
    """Return the expression of the arguments and the end of the call. Raises GrammarError."""
    check_keys(tool)
    properties = tool.schema.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        is_closed = tool.schema.get("additionalProperties") is False
        keywords = "" if is_closed else lark.write_once("any keywords", _write_any)
        return f'{keywords} ")"'
    required = tool.schema.get("required")
    required = required if isinstance(required, list) else []
    members = [
        (f"{write_text(f'{key}=')} {write_parameter(tool, key)}", key in required) for key in properties
    ]
    return f'{write_members(lark, members, _COMMA)} ")"'


def _write_any(lark: LarkWriter) -> str:
    """Return the expression of any arguments."""
    value = lark.write_once("any value", write_any_value)
    member = lark.add("keyword", f'{write_regex(_KEY)} "=" {value}')
    return f"({member} ({_COMMA} {member})*)?"
