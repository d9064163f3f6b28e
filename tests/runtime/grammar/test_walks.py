"""Random walks over the masks of random schemas give JSON that the schemas describe."""

import json
import random
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace_runtime.chat.tokenizer import Tokenizer
from millrace_runtime.grammar.grammar import write_grammar
from millrace_runtime.grammar.matcher import Matcher, Vocabulary
from millrace_runtime.grammar.source import GrammarKind
from millrace_runtime.replica.settings import DEMO_PATH

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


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value is as one of these schemas says."""
    match schema:
        case {"anyOf": schemas}:
            return any(fits(value, inner) for inner in schemas)
        case {"enum": values}:
            return any(value == item and type(value) is type(item) for item in values)
        case {"minimum": low, "maximum": high}:
            return type(value) is int and low <= value <= high
        case {"maxLength": longest}:
            return isinstance(value, str) and len(value) <= longest
        case {"items": inner, "maxItems": longest}:
            return (
                isinstance(value, list) and len(value) <= longest and all(fits(item, inner) for item in value)
            )
    return isinstance(value, bool) if schema["type"] == "boolean" else fits_object(value, schema)


def fits_object(value: Any, schema: dict[str, Any]) -> bool:
    return (
        isinstance(value, dict)
        and set(schema["required"]) <= value.keys() <= schema["properties"].keys()
        and all(fits(item, schema["properties"][name]) for name, item in value.items())
    )


TOKENIZER = Tokenizer.load(DEMO_PATH)
VOCABULARY = Vocabulary(TOKENIZER, 4096)


@settings(deadline=None)
@given(SCHEMAS, st.integers())
def test_a_walk_over_the_masks_ends_in_json_that_fits(schema: dict[str, Any], seed: int) -> None:
    rng, end = random.Random(seed), TOKENIZER.end_token_ids[0]
    root = Matcher.build(VOCABULARY, write_grammar(GrammarKind.SCHEMA, json.dumps(schema)))
    matcher, mask, tokens = root.fork([end]), bytearray(VOCABULARY.end_bits.nbytes), []
    while not matcher.is_stopped and len(tokens) < MAX_TOKENS:
        matcher.fill(mask)
        bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
        token = int(rng.choice(np.flatnonzero(bits)))
        if token == end:
            break
        matcher.consume(token)
        tokens.append(token)
    assert matcher.fault is None
    text = b"".join(map(TOKENIZER.token_bytes, tokens)).decode()
    assert fits(json.loads(text), schema), text
