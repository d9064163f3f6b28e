"""Random walks over the masks of random schemas give JSON that the schemas describe."""

import json
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_runtime.grammar.grammar import write_grammar
from millrace_runtime.grammar.matcher import MOST_FORCED, Matcher, Vocabulary
from millrace_runtime.grammar.source import GrammarKind
from tests.runtime.grammar.fitting import load_tokenizer, load_vocabulary
from tests.runtime.grammar.validity import fits

MAX_TOKENS = 400
NAMES = st.sampled_from(["a", "b", "name", "größe", 'q"uote'])
LEAVES = st.one_of(
    st.builds(
        lambda low, size: {"type": "integer", "minimum": low, "maximum": low + size},
        st.integers(-50, 50),
        st.integers(0, 20),
    ),
    st.builds(lambda longest: {"type": "string", "maxLength": longest}, st.integers(0, 6)),
    st.just({"type": "boolean"}),
    st.builds(
        lambda values: {"enum": values},
        st.lists(st.sampled_from([1, "x", None, "ä"]), min_size=1, unique=True),
    ),
)


SETS = st.builds(
    lambda values, longest: {
        "type": "array",
        "items": {"enum": values},
        "maxItems": longest,
        "uniqueItems": True,
    },
    st.lists(st.sampled_from([1, "x", None, True]), min_size=1, max_size=3, unique_by=repr),
    st.integers(0, 4),
)


def _object(properties: dict[str, Any], is_required: list[bool]) -> dict[str, Any]:
    required = [name for name, wanted in zip(properties, is_required, strict=False) if wanted]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(
            _object,
            st.dictionaries(NAMES, inner, max_size=3),
            st.lists(st.booleans(), min_size=3, max_size=3),
        ),
        st.builds(
            lambda items, longest: {"type": "array", "items": items, "maxItems": longest},
            inner,
            st.integers(0, 3),
        ),
        st.builds(lambda schemas: {"anyOf": schemas}, st.lists(inner, min_size=1, max_size=2)),
    ),
    max_leaves=4,
)


def _tag(inner: list[Any], *, is_required: bool) -> dict[str, Any]:
    """A union as pydantic writes it: the tag has a default if it is not required."""
    tags = [{"const": f"t{number}", "default": f"t{number}"} for number in range(len(inner))]
    pairs = zip(tags, inner, strict=True)
    definitions = {tag["const"]: _object({"tag": tag, "a": one}, [is_required]) for tag, one in pairs}
    return {"oneOf": [{"$ref": f"#/$defs/{name}"} for name in definitions], "$defs": definitions}


TAGGED = st.builds(_tag, st.lists(SCHEMAS, min_size=2, max_size=3), is_required=st.booleans())
NAMED = st.builds(
    lambda names, inner: {"type": "object", "propertyNames": {"enum": names}, "additionalProperties": inner},
    st.lists(NAMES, max_size=3, unique=True),
    SCHEMAS,
)


@given(st.one_of(SCHEMAS, SETS, TAGGED, NAMED), st.integers())
def test_a_walk_over_the_masks_ends_in_json_that_fits(schema: dict[str, Any], seed: int) -> None:
    tokenizer, vocabulary = load_tokenizer(), load_vocabulary()
    rng, end = random.Random(seed), tokenizer.end_token_ids[0]
    root = Matcher.build(vocabulary, write_grammar(GrammarKind.SCHEMA, json.dumps(schema)))
    is_forcing = bool(seed % 2)
    matcher, mask, tokens = root.fork([end], is_forcing=is_forcing), bytearray(vocabulary.end_bits.nbytes), []
    while not matcher.is_stopped and len(tokens) < MAX_TOKENS:
        matcher.fill(mask)
        bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
        token = int(rng.choice(np.flatnonzero(bits)))
        if token == end:
            break
        matcher.consume(token)
        tokens.append(token)
    assert matcher.fault is None
    text = b"".join(map(tokenizer.token_bytes, tokens)).decode()
    assert fits(json.loads(text), schema, schema.get("$defs", {})), text
    assert_forced(root.fork([end], is_forcing=True), tokens, is_forcing=is_forcing)


def assert_forced(matcher: Matcher, tokens: list[int], *, is_forcing: bool) -> None:
    """What is forced behind a token follows in the text, and in the same tokens where masks forced them."""
    texts = [load_tokenizer().token_bytes(token) for token in tokens]
    for place, token in enumerate(tokens, 1):
        matcher.consume(token)
        forced = matcher.copy().force(MAX_TOKENS)
        assert not is_forcing or forced == tokens[place : place + len(forced)]
        assert b"".join(texts[place:]).startswith(b"".join(map(load_tokenizer().token_bytes, forced)))
    assert matcher.fault is None


def test_a_name_is_forced_behind_its_quote_and_a_stop_token_is_drawn() -> None:
    tokenizer, [end] = load_tokenizer(), load_tokenizer().end_token_ids
    schema = {
        "type": "object",
        "properties": {"number_of_legs": {"enum": [4]}},
        "required": ["number_of_legs"],
    }
    root = Matcher.build(load_vocabulary(), write_grammar(GrammarKind.SCHEMA, json.dumps(schema)))
    [drawn, name] = tokenizer.encode_batch(['{"', 'number_of_legs"'], add_special_tokens=False)
    for stops, forced in (([end], name), ([end, name[2]], name[:2]), ([end, name[0]], [])):
        matcher = root.fork(stops, is_forcing=True)
        for token in drawn:
            matcher.consume(token)
        assert matcher.copy().force(1) == forced[:1]
        assert matcher.force(MAX_TOKENS) == forced[:MOST_FORCED]
        assert matcher.force(MAX_TOKENS) == forced[MOST_FORCED:]
        assert matcher.force(MAX_TOKENS) == []


@dataclass
class Normalising:
    """The shipped tokenizer with a normaliser of its own. One prepends a blank to each text."""

    normalizer: dict[str, Any]
    end_token_ids: tuple[int, ...] = load_tokenizer().end_token_ids

    def to_json(self) -> str:
        known = json.loads(load_tokenizer().to_json()) | {"normalizer": self.normalizer}
        known["pre_tokenizer"] = {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        }
        return json.dumps(known, separators=(",", ":"))


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
@pytest.mark.parametrize("value", ["k\u2126", "cafe\u0301", "\ufb01n \u212b", "ä"])
def test_a_forced_text_is_no_other_form_of_its_letters(form: str, value: str) -> None:
    vocabulary = Vocabulary(Normalising({"type": "Sequence", "normalizers": [{"type": form}]}), 4096)
    source = json.dumps({"enum": [f"a{value}", f"b{value}"]}, ensure_ascii=False)
    matcher = Matcher.build(vocabulary, write_grammar(GrammarKind.SCHEMA, source)).fork([], is_forcing=True)
    text = '"b'
    for token in vocabulary.tokenize(text):
        matcher.consume(token)
    while forced := matcher.force(MAX_TOKENS):
        text += vocabulary.native.decode_bytes(forced).decode()
    assert matcher.fault is None
    assert json.dumps(f"b{value}", ensure_ascii=False).startswith(text)
    assert len(text) > 2


def test_a_forced_token_that_does_not_fit_ends_the_forced_ones() -> None:
    """A text with a special token's name is tokenised as that token, which no text has."""
    root = Matcher.build(load_vocabulary(), write_grammar(GrammarKind.REGEX, "[ab]xx"))
    matcher = root.fork([], is_forcing=True)
    [a, q, x] = (load_vocabulary().tokenize(letter)[-1] for letter in "aqx")
    matcher.consume(a)
    matcher._forced = [x, q, x]
    assert matcher.force(MAX_TOKENS) == [x]
    assert matcher.fault is not None
    assert matcher.force(MAX_TOKENS) == []
