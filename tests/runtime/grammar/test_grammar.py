"""A client's grammar as llguidance reads it, and the texts that fit it."""

import json

import pytest

from millrace_runtime.chat.tokenizer import Tokenizer
from millrace_runtime.grammar.errors import GrammarError
from millrace_runtime.grammar.grammar import write_grammar
from millrace_runtime.grammar.matcher import MOST_FORCED, Matcher, Vocabulary
from millrace_runtime.grammar.proof import prove
from millrace_runtime.grammar.source import MAX_BYTES, GrammarKind
from millrace_runtime.replica.settings import DEMO_PATH
from tests.runtime.grammar.fitting import Fitting, open_schema

PAIR = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 9}, "b": {"enum": ["x", None]}},
    "required": ["a"],
    "additionalProperties": False,
}


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(DEMO_PATH)


@pytest.fixture(scope="session")
def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary(tokenizer, 4100)  # some logits have no token


FITTING = [
    (
        "schema",
        json.dumps(PAIR),
        ['{"a":1}', '{"a": 9,\n    "b": null}'],
        ['{"b":"x"}', '{"a":10}', '{"a":  1}'],
    ),
    ("schema", '{"type":"object"}', ["{}", '{"ä": [1, {"b": "\\n"}]}'], ["[]", '{"a"}']),
    ("schema", '{"type":"string","format":"path","default":{"format":"x"}}', ['"a"'], ["1"]),
    (
        "schema",
        '{"properties":{"format":{"format":"date"}}}',
        ['{"format":"2026-01-02"}'],
        ['{"format":"x"}'],
    ),
    ("regex", r"a/\d{2}|\w", ["a/12", "z"], ["a/1", "a/123", ""]),
    (
        "choice",
        json.dumps(["yes", 'n"o\\', "viel😀\nicht", "\x7f"]),
        ["yes", 'n"o\\', "viel😀\nicht", "\x7f"],
        ["ye", "no"],
    ),
    ("grammar", 'start: "a" b*\nb: /[0-9]/ | "(" start ")"', ["a", "a1(a2)"], ["a(", "1"]),
    ("grammar", 'root ::= "x" digit-rule+\ndigit-rule ::= [0-9]', ["x1", "x123"], ["x", "xx"]),
]


@pytest.mark.parametrize(("kind", "source", "good", "bad"), FITTING)
def test_a_text_fits_or_not(  # noqa: PLR0917
    vocabulary: Vocabulary, tokenizer: Tokenizer, kind: str, source: str, good: list[str], bad: list[str]
) -> None:
    grammar = Fitting(vocabulary, tokenizer, write_grammar(GrammarKind(kind), source))
    assert [text for text in good if not grammar.fits(text)] == []
    assert [text for text in bad if grammar.fits(text)] == []


CHOICES = [{"properties": {f"a{number}": {"type": "string"}}} for number in range(9)]
MANY = {f"a{number}": {"type": "string"} for number in range(601)}
REFUSED = [
    ("schema", "[]", "no JSON schema"),
    ("schema", '{"type":', "no JSON schema"),
    ("schema", '{"type":"integer","minimum":5,"maximum":3}', "minimum (5) is greater than maximum (3)"),
    ("schema", '{"properties":{"a":{"not":{"type":"null"}}}}', "`#/properties/a/not`"),
    ("schema", json.dumps({"allOf": [{"anyOf": CHOICES} for _ in range(9)]}), "schema too large"),
    ("schema", '{"items":' * 500 + "true" + "}" * 500, "recursion limit"),
    ("regex", "(", "unclosed group"),
    ("regex", "(?=a)", "look-around"),
    ("regex", "a" * (MAX_BYTES + 1), "shorten it"),
    ("grammar", 'start: "a" b', "unknown name"),
    ("grammar", "root ::= " + "(" * 3000, "neither a Lark grammar nor one in GBNF"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "source", "message"), REFUSED)
def test_a_grammar_that_nothing_fits_or_that_is_too_much_is_refused(
    vocabulary: Vocabulary, kind: str, source: str, message: str
) -> None:
    with pytest.raises(GrammarError) as caught:
        Matcher.build(vocabulary, write_grammar(GrammarKind(kind), source))
    assert message in str(caught.value)
    assert len(str(caught.value)) < 700


SPECIAL = "<|end|>"
TEXTS_OF_SPECIAL_TOKENS = [
    (GrammarKind.SCHEMA, json.dumps({"const": SPECIAL}), f'"{SPECIAL}"'),
    (
        GrammarKind.SCHEMA,
        json.dumps({"properties": {SPECIAL: {}}, "required": [SPECIAL]}),
        f'{{"{SPECIAL}": 1}}',
    ),
    (GrammarKind.SCHEMA, '{"enum": ["\\u003c|end|>ü", 1]}', f'"{SPECIAL}ü"'),
    (GrammarKind.REGEX, r"a<\|end\|>", f"a{SPECIAL}"),
    (GrammarKind.REGEX, r"a(\x3c[|])(?:en)d[|]{1}>", f"a{SPECIAL}"),
    (GrammarKind.CHOICE, json.dumps([f"a{SPECIAL}", "b"]), f"a{SPECIAL}"),
    (GrammarKind.GRAMMAR, 'start: "a" "<|" "end" "\\u007c>"', f"a{SPECIAL}"),
    (GrammarKind.GRAMMAR, 'root ::= "a<|e" "nd" [|] ">"', f"a{SPECIAL}"),
]


@pytest.mark.parametrize("before", ["", 'start: "{" @answer'])
@pytest.mark.parametrize(("kind", "source", "text"), TEXTS_OF_SPECIAL_TOKENS)
def test_a_special_tokens_letters_are_written_with_other_tokens(
    vocabulary: Vocabulary, kind: GrammarKind, source: str, text: str, before: str
) -> None:
    """The library makes forced tokens of a forced text as the tokenizer does, which makes the special one."""
    proven = prove(vocabulary, kind, source, before)
    matcher = Matcher.compile(vocabulary, proven).fork([], is_forcing=True)
    for letter in "{" * bool(before) + text:
        matcher.fill(bytearray(vocabulary.end_bits.nbytes))
        for token in vocabulary.tokenize(letter):
            assert matcher.accepts(token), matcher.fault
            matcher.consume(token)
        assert matcher.force(MOST_FORCED) == []
    assert matcher.is_stopped or matcher.copy().accepts(vocabulary.native.eos_token)


def test_an_object_may_leave_out_many_properties(vocabulary: Vocabulary, tokenizer: Tokenizer) -> None:
    schema = {"type": "object", "properties": MANY, "required": ["a7"], "additionalProperties": False}
    grammar = Fitting(vocabulary, tokenizer, write_grammar(GrammarKind.SCHEMA, json.dumps(schema)))
    assert grammar.fits('{"a7": "x", "a600": "y"}')
    assert not grammar.fits('{"a600": "y"}')


def test_a_copy_that_fails_spares_its_matcher(vocabulary: Vocabulary, tokenizer: Tokenizer) -> None:
    grammar = write_grammar(GrammarKind.GRAMMAR, "start: s\ns: s s | s s s | /[a-z]/")
    matcher = Matcher.build(vocabulary, grammar, is_of_client=True)
    mask = bytearray(vocabulary.end_bits.nbytes)
    [letter, *_], *_ = tokenizer.encode_batch(["a"], add_special_tokens=False)
    ahead = matcher.copy()
    while ahead.fault is None:  # it is too ambiguous for long texts
        ahead.consume(letter)
        ahead.fill(mask)
    assert not any(mask)
    matcher.fill(mask)
    assert (matcher.accepts(letter), matcher.fault, any(mask)) == (True, None, True)


def test_the_grammar_of_a_schema_leaves_valid_objects_out() -> None:
    """So with `auto` it binds strict tools alone: see `docs/design/replica.md`."""
    texts = {name: {"type": "string"} for name in ("unit", "city")}
    grammar = open_schema({"type": "object", "properties": texts, "required": ["city"]})
    valid = (
        '{"unit": "C", "city": "Rome"}',
        '{"city": "Rome", "unit": "C"}',  # once the city is written, the unit can't be
        '{  "city": "Rome"}',
    )
    assert [grammar.fits(text) for text in valid] == [True, False, False]
