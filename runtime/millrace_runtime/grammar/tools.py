"""Writes the grammar of an answer that must call a tool, in the format of the model. Pure.

It is for the formats that are JSON: what a call must be is the JSON schema of the tools.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from millrace_runtime.grammar.source import GrammarKind, GrammarSource

_FIELD = "tool_choice"
_ARGUMENTS = {"hermes": "arguments", "llama3": "parameters"}
"""The name of a call's arguments, by format."""
FORCIBLE = frozenset(_ARGUMENTS)
"""The formats whose calls a grammar can force."""
_DEFINITIONS = ("$defs", "definitions")


class ToolConflict(ValueError):  # noqa: N818  names the state, as a person would
    """Two tools define one name differently; the text says which."""


def write_calls(tool_format: str, tools: Sequence[Mapping[str, Any]], *, is_one_call: bool) -> GrammarSource:
    """Return the grammar of a call of one of these tools, or of several calls.

    `tools` are {"function": {"name", "parameters"}}. Raises ToolConflict.
    """
    schema = json.dumps(_write_schema(_ARGUMENTS[tool_format], tools))
    if tool_format == "llama3":  # several calls have no marker between them
        return GrammarSource(GrammarKind.SCHEMA, schema, _FIELD)
    calls = "call" if is_one_call else 'call ("\\n" call)*'
    lark = f'start: {calls}\ncall: "<tool_call>\\n" object "\\n</tool_call>"\nobject: %json {schema}\n'
    return GrammarSource(GrammarKind.LARK, lark, _FIELD)


def _write_schema(arguments: str, tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the schema of a call. The tools' definitions move to its root, where `$ref` finds them."""
    calls: list[dict[str, Any]] = []
    definitions: dict[str, dict[str, Any]] = {}
    for tool in tools:
        function = tool["function"]
        parameters = dict(function.get("parameters") or {"type": "object"})
        for key in _DEFINITIONS:
            _merge(definitions.setdefault(key, {}), parameters.pop(key, None) or {})
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": function["name"]}, arguments: parameters},
                "required": ["name", arguments],
                "additionalProperties": False,
            }
        )
    return {"anyOf": calls} | {key: named for key, named in definitions.items() if named}


def _merge(known: dict[str, Any], added: Mapping[str, Any]) -> None:
    for name, schema in added.items():
        if known.setdefault(name, schema) != schema:
            raise ToolConflict(f"two tools define `{name}` differently: give one of them another name")
