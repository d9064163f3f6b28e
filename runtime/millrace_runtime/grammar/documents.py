"""JSON schemas inside a Lark grammar of ours.

The HTTP process writes them as the client sent them. The process that proves the grammar rewrites them, and
it alone looks through them.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from millrace_runtime.grammar.json_schema.places import ROOT

_ORIGIN = "x-millrace"
_BEGIN = "%json "
_TOKEN = re.compile(rf'"(?:\\.|[^"\\])*"|/(?:\\.|[^/\\])*/|{_BEGIN}', re.DOTALL)
_DECODER = json.JSONDecoder()
_DEFINITIONS = (f"{ROOT}/$defs/", f"{ROOT}/definitions/")


class Origin(msgspec.Struct, frozen=True, omit_defaults=True):
    """The tool and the place that a schema belongs to. The schema has them under a keyword of its own."""

    tool: str = ""
    path: str = ROOT
    """Where it stands in the schema of the tool."""
    inner: str = ROOT
    """The path of the tool's schema inside this schema, if this schema contains more than the tool's."""
    is_strict: bool = False
    """Whether the client calls the tool strict: then nothing of the schema may be left out."""

    def translate(self, message: str) -> str:
        """Return a message about this schema as one about the client's, whose places it names."""
        if self.inner != ROOT and message[1:].startswith((f"{self.inner}/", f"{self.inner}`")):
            message = f"`{ROOT}{message[1 + len(self.inner) :]}"
        if self.path != ROOT and message.startswith(f"`{ROOT}") and not message[1:].startswith(_DEFINITIONS):
            message = f"`{self.path}{message[2:]}"
        return f"in `{self.tool}`, {message}" if self.tool else message


def write_json(schema: Mapping[str, Any], origin: Origin) -> str:
    """Return the expression of JSON by a schema."""
    return f"{_BEGIN}{msgspec.json.encode(add_origin(schema, origin)).decode()}"


def add_origin(schema: Mapping[str, Any], origin: Origin) -> dict[str, Any]:
    """Return a copy of a schema with its origin in it."""
    return {**schema, _ORIGIN: origin}


def take_origin(schema: dict[str, Any]) -> Origin:
    """Take the origin out of a schema, and return it; an empty one for a schema without."""
    try:
        return msgspec.convert(schema.pop(_ORIGIN, {}), Origin)
    except msgspec.ValidationError:  # it is the client's own
        return Origin()


def list_documents(lark: str) -> Iterator[dict[str, Any]]:
    """Yield the schemas of a grammar."""
    for part in _split(lark):
        if isinstance(part, dict):
            yield part


def change_documents(lark: str, change: Callable[[dict[str, Any]], Mapping[str, Any]]) -> str:
    """Return the grammar with each schema changed."""
    parts = (
        part if isinstance(part, str) else msgspec.json.encode(change(part)).decode() for part in _split(lark)
    )
    return "".join(parts)


def _split(lark: str) -> Iterator[str | dict[str, Any]]:
    """Yield the texts of a grammar and its schemas in turn."""
    begin = place = 0
    while found := _TOKEN.search(lark, place):
        place = found.end()
        if found[0] == _BEGIN:
            schema, end = _DECODER.raw_decode(lark, place)
            yield lark[begin:place]
            yield schema
            begin = place = end
    yield lark[begin:]
