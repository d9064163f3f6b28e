"""Writes the grammar that a client asks for as one of llguidance. Pure."""

import itertools
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from millrace_runtime.grammar.any_json import ANY_OBJECT
from millrace_runtime.grammar.documents import Origin, change_documents, list_documents, take_origin
from millrace_runtime.grammar.errors import GrammarError
from millrace_runtime.grammar.json_schema.crowds import list_crowds
from millrace_runtime.grammar.json_schema.excerpts import write_excerpt
from millrace_runtime.grammar.json_schema.keywords import OPTIONS, rewrite_schema
from millrace_runtime.grammar.json_schema.places import ROOT, quote_path
from millrace_runtime.grammar.json_schema.refused_keyword import find_fault
from millrace_runtime.grammar.lark import SPACE, write_text
from millrace_runtime.grammar.reasoning import ANSWER, BOUND
from millrace_runtime.grammar.source import MAX_BYTES, GrammarKind

_LARK = "lark_grammar"
_NO_FORCING = '%llguidance {"no_forcing": true}\n'
_BLANK_LINES = re.compile(r"\n{3,}")
"""The converter's time grows with their square."""
_MAX_WHY = 400
_OPENINGS = ("{", "{\n", "{ ", "[")
"""A mask behind a blank costs the most: each token that ends it has a row of its own."""
_MOST_TOGETHER = 200
"""Trials in one grammar, whose parser has four items in its first row for each."""
_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_JSON: Any = {"whitespace_pattern": SPACE, "coerce_one_of": True}
"""Alternatives of a `oneOf` that may fit the same value are refused before."""


class Document(NamedTuple):
    """A schema inside a grammar, as llguidance reads it."""

    origin: Origin
    schema: dict[str, Any]


class Trial(NamedTuple):
    """A place of a client's schema where much may follow."""

    place: str
    """Where it stands, for the client."""
    opening: str
    """The text before it."""
    beginnings: list[str]
    """Of texts there, in which `VALUE` is any value that fits. Behind each token the parser may reach a
    limit. Not all need to fit."""


def write_grammar(kind: GrammarKind, source: str, before: str = "", *, is_forcing: bool = True) -> str:
    """Return the grammar's text for llguidance. `before` is as GrammarSource has it. Raises GrammarError.

    `is_forcing`: where one text alone may follow, only the tokens that the tokenizer makes of it are allowed.
    Otherwise these are any tokens with that text.
    """
    answer = _write_answer(kind, source)
    is_lark = kind not in {GrammarKind.SCHEMA, GrammarKind.REGEX}
    parts = [{_LARK: answer}] if is_lark else json.loads(answer)["grammars"]
    if before or not is_forcing:
        head = "" if is_forcing else _NO_FORCING
        ahead = change_documents(before or f"start: {BOUND}", _rewrite_document)
        parts = [{_LARK: head + ahead}, {**parts[0], "name": ANSWER}]
    return json.dumps({"grammars": parts})


def widen_refused(source: str) -> str:
    """Return a Lark grammar of ours in which each tool is called with any object whose schema is refused.

    A tool whose client calls it strict keeps its schema, and the refusal.
    """
    return change_documents(source, _widen_document)


def widen_all(source: str) -> str:
    """Return a Lark grammar of ours in which each tool is called with any object, but for strict ones."""
    return change_documents(source, _drop_schema)


def widen_one(source: str, number: int) -> str:
    """Return a Lark grammar of ours in which one document is any object, unless its tool is strict."""
    numbers = itertools.count()
    return change_documents(
        source, lambda schema: _drop_schema(schema) if next(numbers) == number else schema
    )


def list_written(kind: GrammarKind, source: str, before: str, text: str) -> Iterator[Document]:
    """Yield the schemas of a grammar that is written, those of the source first."""
    *ahead, answer = json.loads(text)["grammars"]
    ours = [answer, *ahead] if kind in {GrammarKind.SCHEMA, GrammarKind.LARK} else ahead
    schemas = itertools.chain.from_iterable(map(_list_in, ours))
    return map(Document, map(take_origin, _list_schemas(kind, source, before)), schemas)


def list_trials(document: Document) -> Iterator[tuple[str, list[Trial]]]:
    """Yield grammars of parts of a schema, each with trials that show whether the parser's limits suffice.

    Raises GrammarError for a schema with too many alternatives.
    """
    translate = document.origin.translate
    try:
        crowds = list_crowds(document.schema)
    except GrammarError as error:
        raise GrammarError(translate(str(error))) from error
    for begin in range(0, len(crowds), _MOST_TOGETHER):
        tried = crowds[begin : begin + _MOST_TOGETHER]
        excerpt = write_excerpt(document.schema, [crowd.schemas for crowd in tried])
        yield (
            _compile_schema(excerpt),
            [
                Trial(translate(quote_path(crowd.path)), f'{{"{number}": [', [*_OPENINGS, *crowd.beginnings])
                for number, crowd in enumerate(tried)
            ],
        )


def explain_fault(kind: GrammarKind, source: str, before: str, why: str) -> str:
    """Return llguidance's message, with the place in the client's schema if one is at fault alone."""
    with suppress(RecursionError):
        for schema in _list_schemas(kind, source, before):
            origin = take_origin(schema)
            written = rewrite_schema(schema, _find_why, is_strict=origin.is_strict)
            if (fault := find_fault(written, _find_why)) is not None:
                return origin.translate(f"{quote_path(fault.path)}: {fault.why}: change it or leave it out")
    return why


def _list_schemas(kind: GrammarKind, source: str, before: str) -> Iterator[dict[str, Any]]:
    if kind == GrammarKind.SCHEMA and isinstance(schema := json.loads(source), dict):
        yield schema
    for lark in (source if kind == GrammarKind.LARK else "", before):
        yield from list_documents(lark)


def _list_in(written: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if isinstance(schema := written.get("json_schema"), dict):
        yield schema
    yield from list_documents(written.get(_LARK) or "")


def _find_why(schema: dict[str, Any]) -> str | None:
    """Return why llguidance refuses a schema, or None."""
    is_error, messages = LLMatcher.validate_grammar_with_warnings(_compile_schema(schema))
    return messages[0][:_MAX_WHY] if is_error else None


def _write_answer(kind: GrammarKind, source: str) -> str:
    if len(source.encode(errors="surrogatepass")) > MAX_BYTES:
        raise GrammarError(f"it has more than {MAX_BYTES} bytes: shorten it")
    match kind:
        case GrammarKind.SCHEMA:
            return _write_schema(source)
        case GrammarKind.REGEX:
            return LLMatcher.grammar_from_regex(source)
        case GrammarKind.CHOICE:
            return _write_choice(source)
        case GrammarKind.LARK:
            return LLMatcher.grammar_from_lark(change_documents(source, _rewrite_document))
        case GrammarKind.GRAMMAR:
            return _write_lark(source)


def _write_schema(source: str) -> str:
    try:
        schema = json.loads(source)
        return _compile_schema(_rewrite(schema) if isinstance(schema, dict) else schema)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"it is no JSON schema: {error}") from error


def _compile_schema(schema: Any) -> str:
    return LLMatcher.grammar_from_json_schema(schema, defaults=_JSON)


def _rewrite_document(schema: dict[str, Any]) -> dict[str, Any]:
    return {**_rewrite(schema), OPTIONS: _JSON}


def _widen_document(schema: dict[str, Any]) -> dict[str, Any]:
    known = json.dumps(schema)
    origin = take_origin(schema)
    if not origin.tool or origin.is_strict:
        return dict(json.loads(known))
    named = schema.get("type")
    try:
        is_refused = _find_why(rewrite_schema(schema, _find_why)) is not None
    except GrammarError:
        is_refused = True
    return _choose_wide(named, origin) if is_refused else dict(json.loads(known))


def _drop_schema(schema: dict[str, Any]) -> dict[str, Any]:
    origin = take_origin({**schema})
    is_value = origin.path == ROOT and "type" not in schema  # one that Gemma writes without JSON around it
    if not origin.tool or origin.is_strict or is_value:
        return schema
    return _choose_wide(schema.get("type"), origin)


def _choose_wide(named: Any, origin: Origin) -> dict[str, Any]:
    """Return a schema of any value of the same type: a document may be of one argument alone."""
    if isinstance(named, str) and named in _TYPES:
        return {"type": named}
    return dict(ANY_OBJECT) if origin.path == ROOT else {}


def _rewrite(schema: dict[str, Any]) -> dict[str, Any]:
    origin = take_origin(schema)
    try:
        return rewrite_schema(schema, _find_why, is_strict=origin.is_strict)
    except GrammarError as error:
        raise GrammarError(origin.translate(str(error))) from error


def _write_choice(source: str) -> str:
    texts = " | ".join(map(write_text, json.loads(source)))
    return LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {texts}")


def _write_lark(source: str) -> str:
    try:
        return LLMatcher.grammar_from_lark(any_to_lark(_BLANK_LINES.sub("\n\n", source)))
    except Exception as error:  # the converter raises plain Exception, and RecursionError on nested groups
        raise GrammarError(f"it is neither a Lark grammar nor one in GBNF: {error}") from error
