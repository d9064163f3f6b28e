"""Reads the grammar that a body asks for: OpenAI's `response_format`, and vLLM's fields, old and new.

The grammar worker decides whether the grammar can be used.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.grammar.documents import Origin, add_origin
from millrace_runtime.grammar.source import GrammarKind, GrammarSource

_ANY_OBJECT = '{"type":"object"}'
_MAX_CHOICES = 4096
_INSTEAD = {
    "disable_any_whitespace": "leave it out: between its tokens JSON has one space or line break at most",
    "disable_additional_properties": "write `additionalProperties: false` into the schema",
    "whitespace_pattern": "write it into a `structured_outputs.grammar`",
    "structural_tag": "send one of `json`, `regex`, `choice` and `grammar`",
}

Schema = dict[str, Any] | str
"""A JSON schema, or its text."""
Choices = Annotated[list[str], Meta(min_length=1, max_length=_MAX_CHOICES)]


class JsonSchema(msgspec.Struct, forbid_unknown_fields=True):
    """A named schema."""

    schema: dict[str, Any]
    name: Any = None
    description: Any = None
    strict: Any = None
    """true: a schema that can't be kept in each point is refused. Else duplicates in an array may pass."""


class ResponseFormat(msgspec.Struct, forbid_unknown_fields=True):
    """OpenAI's."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema: dict[str, Any] | None = None
    """With `json_object`, as llama.cpp's clients and those of several services send it."""


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True):
    """vLLM's: one of these."""

    json: Schema | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None
    structural_tag: str | None = None
    """From `disable_any_whitespace` on: refused unless they are vLLM's defaults."""
    disable_fallback: Any = None
    backend: Any = msgspec.field(name="_backend", default=None)
    backend_was_auto: Any = msgspec.field(name="_backend_was_auto", default=None)
    """From `disable_fallback` on ignored: they choose the library that keeps the form."""


class GrammarFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields that ask for a grammar."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None


def read_grammar(fields: GrammarFields) -> GrammarSource | None:
    """Return the grammar; None without one. Raises BadRequestError for more than one."""
    found = [
        *_read_response_format(fields.response_format),
        *_read_outputs(fields.structured_outputs),
        *_read_values(
            "guided_",
            json=fields.guided_json,
            regex=fields.guided_regex,
            choice=fields.guided_choice,
            grammar=fields.guided_grammar,
        ),
    ]
    if len(found) > 1:
        raise BadRequestError(
            f"`{found[0].field}` and `{found[1].field}` exclude each other: send one", param=found[1].field
        )
    return found[0] if found else None


def _read_response_format(wanted: ResponseFormat | None) -> list[GrammarSource]:
    if wanted is not None and wanted.schema is not None and wanted.type != "json_object":
        raise BadRequestError(
            "`response_format.schema` is for the type `json_object`: send a `json_schema` with a `schema`",
            param="response_format.schema",
        )
    if wanted is None or wanted.type == "text":
        return []
    if wanted.type == "json_object":
        if wanted.schema:
            return [_write_schema(wanted.schema, "response_format")]
        return [GrammarSource(GrammarKind.SCHEMA, _ANY_OBJECT, "response_format")]
    if wanted.json_schema is None:
        raise BadRequestError(
            "`response_format` of type `json_schema` needs a `json_schema` with a `schema`",
            param="response_format.json_schema",
        )
    schema = wanted.json_schema.schema
    if wanted.json_schema.strict is True:
        schema = add_origin(schema, Origin(is_strict=True))
    return [_write_schema(schema, "response_format")]


def _read_outputs(wanted: StructuredOutputs | None) -> list[GrammarSource]:
    if wanted is None:
        return []
    schema = wanted.json
    at = "structured_outputs."
    _refuse_options(wanted)
    found = _read_values(at, json=schema, regex=wanted.regex, choice=wanted.choice, grammar=wanted.grammar)
    if wanted.json_object:
        found.append(GrammarSource(GrammarKind.SCHEMA, _ANY_OBJECT, f"{at}json_object"))
    if not found:
        raise BadRequestError(
            "`structured_outputs` needs one of `json`, `regex`, `choice`, `grammar` and `json_object`",
            param="structured_outputs",
        )
    return found


def _refuse_options(wanted: StructuredOutputs) -> None:
    """Raise BadRequestError for an option that is not vLLM's default."""
    for name, hint in _INSTEAD.items():
        if getattr(wanted, name):
            param = f"structured_outputs.{name}"
            raise BadRequestError(
                f"`{param}` is not supported: {hint}", param=param, code="unsupported_parameter"
            )


def _read_values(
    at: str, *, json: Schema | None, regex: str | None, choice: list[str] | None, grammar: str | None
) -> list[GrammarSource]:
    """Return the grammars of fields whose names begin with `at`."""
    found = [] if json is None else [_write_schema(json, f"{at}json")]
    if regex is not None:
        found.append(GrammarSource(GrammarKind.REGEX, regex, f"{at}regex"))
    if choice is not None:
        found.append(GrammarSource(GrammarKind.CHOICE, _encode(choice), f"{at}choice"))
    if grammar is not None:
        found.append(GrammarSource(GrammarKind.GRAMMAR, grammar, f"{at}grammar"))
    return found


def _write_schema(schema: Schema, field: str) -> GrammarSource:
    if isinstance(schema, str):
        return GrammarSource(GrammarKind.SCHEMA, schema, field)
    try:
        return GrammarSource(GrammarKind.SCHEMA, _encode(schema), field)
    except RecursionError as error:
        raise BadRequestError(f"`{field}` is nested too deep: make it flatter", param=field) from error


def _encode(value: Any) -> str:
    return msgspec.json.encode(value).decode()
