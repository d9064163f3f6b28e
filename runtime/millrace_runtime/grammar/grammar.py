"""Writes what a client asks for as one grammar of llguidance. Pure."""

import json
import re

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from millrace_runtime.grammar.errors import GrammarError
from millrace_runtime.grammar.lark import SPACE, write_text
from millrace_runtime.grammar.reasoning import ANSWER
from millrace_runtime.grammar.schema import drop_unknown_formats
from millrace_runtime.grammar.source import MAX_BYTES, GrammarKind

_BLANK_LINES = re.compile(r"\n{3,}")
"""The converter's time grows with their square."""


def write_grammar(kind: GrammarKind, source: str, before: str = "") -> str:
    """Return the grammar's text for llguidance. `before` is as GrammarSource has it. Raises GrammarError."""
    answer = _write_answer(kind, source)
    if not before:
        return answer
    is_lark = kind not in {GrammarKind.SCHEMA, GrammarKind.REGEX}
    known = {"lark_grammar": answer} if is_lark else json.loads(answer)["grammars"][0]
    return json.dumps({"grammars": [{"lark_grammar": before}, {**known, "name": ANSWER}]})


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
            return LLMatcher.grammar_from_lark(source)
        case GrammarKind.GRAMMAR:
            return _write_lark(source)


def _write_schema(source: str) -> str:
    try:
        schema = drop_unknown_formats(json.loads(source))
        return LLMatcher.grammar_from_json_schema(schema, defaults={"whitespace_pattern": SPACE})
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"it is no JSON schema: {error}") from error


def _write_choice(source: str) -> str:
    texts = " | ".join(map(write_text, json.loads(source)))
    return LLMatcher.grammar_from_lark(f"start: {texts}")


def _write_lark(source: str) -> str:
    try:
        return LLMatcher.grammar_from_lark(any_to_lark(_BLANK_LINES.sub("\n\n", source)))
    except Exception as error:  # the converter raises plain Exception, and RecursionError on nested groups
        raise GrammarError(f"it is neither a Lark grammar nor one in GBNF: {error}") from error
