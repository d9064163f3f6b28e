"""Headers that are as they should be, and those that somebody made up."""

import json
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_fit.errors import FactsError, FitError, HeaderError
from millrace_fit.facts import ModelFacts, find_facts
from millrace_fit.fields import MOST_LAYERS
from millrace_fit.files.headers import MAX_HEADER_BYTES, StoredTensor, parse_header, read_length
from testing.checkpoints.models import LLAMA_8B, LLAMA_70B, QWEN_HALF, stored_of

GOOD: dict[str, Any] = {
    "__metadata__": {"format": "pt"},
    "b": {"dtype": "F32", "shape": [2, 3], "data_offsets": [4, 28]},
    "a": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]},
}


def parse(entries: Any, data_bytes: int = 28) -> dict[str, StoredTensor]:
    header = json.dumps(entries).encode()
    return parse_header(header, 8 + len(header) + data_bytes)


def test_a_header_tells_types_and_shapes() -> None:
    assert parse(GOOD) == {"a": StoredTensor("BF16", (2,)), "b": StoredTensor("F32", (2, 3))}
    assert parse({}, 0) == {}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"a": {"dtype": "BF16", "shape": [2], "data_offsets": [2, 6]}},
            "'a' leaves a gap before it, at byte 0",
        ),
        ({"a": {"dtype": "BF16", "shape": [3], "data_offsets": [0, 4]}}, "of 3 numbers in BF16 has 4 bytes"),
        (
            {"a": {"dtype": "BF16", "shape": [-2], "data_offsets": [0, 4]}},
            "lacks the type, the shape or the place",
        ),
        ({"a": {"dtype": "BF16", "shape": [True], "data_offsets": [0, 2]}}, "lacks the type"),
        (
            {"a": {"dtype": "Q9", "shape": [2], "data_offsets": [0, 4]}},
            "has the unknown type 'Q9'",
        ),
        (
            {"a": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}},
            "'b' overlaps another one, at byte 4",
        ),
        ({"a": {"dtype": 7, "shape": [2], "data_offsets": [0, 4]}}, "has the unknown type '7'"),
        ({"a": {"dtype": "BF16", "shape": "2", "data_offsets": [0, 4]}}, "lacks the type"),
        ({"a": {"dtype": "BF16", "shape": [2**64], "data_offsets": [0, 4]}}, "lacks the type"),
        ({"a": {"dtype": "BF16", "shape": [1] * 65, "data_offsets": [0, 2]}}, "more than 64 dim"),
        ({"__metadata__": {"format": 7}}, "its __metadata__ is no object of texts"),
        ({"__metadata__": "pt"}, "its __metadata__ is no object of texts"),
        ({"a": {"dtype": "BF16", "shape": [2]}}, "lacks the type"),
        ({"a": []}, "lacks the type"),
        ({"c": {"dtype": "BF16", "shape": [2], "data_offsets": [28, 32]}}, "it is cut short"),
    ],
)
def test_a_header_that_does_not_fit_its_file_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(HeaderError, match=words):
        parse(GOOD | change)


@pytest.mark.parametrize("field", ['"shape":[-0]', '"shape":[0],"more":"\\ud800"'])
def test_what_safetensors_reader_refuses_is_refused(field: str) -> None:
    header = f'{{"a":{{"dtype":"U8","data_offsets":[0,0],{field}}}}}'.encode()
    with pytest.raises(HeaderError):
        parse_header(header, 8 + len(header))


def test_a_name_that_is_there_twice_is_refused() -> None:
    header = b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"shape":[1]}}'
    with pytest.raises(HeaderError, match="its header has 'shape' twice"):
        parse_header(header, 8 + len(header))


@pytest.mark.parametrize(
    "header",
    [b"{", b"[]", b"7", b"\xff", b"[" * 100_000, b'{"a":NaN}', b"1" * 5000, "{}".encode("utf-16")],
)
def test_what_is_no_json_object_is_refused(header: bytes) -> None:
    with pytest.raises(HeaderError, match="is no JSON"):
        parse_header(header, 8 + len(header))


@pytest.mark.parametrize(
    ("length", "file_bytes", "words"),
    [
        (MAX_HEADER_BYTES + 1, 1 << 40, "the limit is 100000000"),
        (2**64 - 1, 1 << 40, "the limit is"),
        (93, 100, "it is cut short"),
    ],
)
def test_a_length_that_cannot_be_is_refused_before_anything_is_read(
    length: int, file_bytes: int, words: str
) -> None:
    with pytest.raises(HeaderError, match=words):
        read_length(length.to_bytes(8, "little"), file_bytes)
    with pytest.raises(HeaderError, match="too few"):
        read_length(b"1234", 4)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(st.dictionaries(st.text(), JSON, max_size=4), st.integers(0, 100))
def test_no_header_does_more_than_be_refused(entries: dict[str, Any], data_bytes: int) -> None:
    with suppress(HeaderError):
        assert all(isinstance(one, StoredTensor) for one in parse(entries, data_bytes).values())


@given(st.dictionaries(st.sampled_from(sorted(LLAMA_8B)), JSON, max_size=3))
def test_no_config_does_more_than_be_refused(change: dict[str, Any]) -> None:
    facts = find_facts(LLAMA_8B | change, {})
    assert facts.fault is not None
    assert len(facts.to_json()) < 1500


def test_layers_that_no_file_has_take_no_memory() -> None:
    """Whoever writes config.json counts layers."""
    tracemalloc.start()
    try:
        facts = find_facts(LLAMA_8B | {"num_hidden_layers": MOST_LAYERS}, {})
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert "lack the tensor model.embed_tokens.weight" in str(facts.fault)


@pytest.mark.parametrize("raw", [LLAMA_8B, LLAMA_70B, QWEN_HALF])
def test_facts_travel_as_a_short_line(raw: dict[str, Any]) -> None:
    facts = find_facts(raw, stored_of(raw))
    text = facts.to_json()
    assert len(text) < 600
    assert "\n" not in text
    assert ModelFacts.from_json(text) == facts


def test_facts_of_a_model_that_is_not_served_travel_too() -> None:
    facts = find_facts({"architectures": ["X" * 5000]}, {"é" * 500: StoredTensor("I32", (4,))})
    text = facts.to_json()
    assert len(text) < 1500
    assert ModelFacts.from_json(text) == facts


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"shape": 3}', "null", '{"architecture": "a", "stored": []}']
)
def test_other_text_is_no_facts(text: str) -> None:
    with pytest.raises(FactsError):
        ModelFacts.from_json(text)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_length", 10**30),
        ("attention", {"num_heads": 0}),
        ("attention", {"num_kv_heads": 3}),
        ("width", "4096"),
        ("runs", [[[0], True]]),
        ("attention", {"head_dim": 1.5}),
        ("attention", {"window": -1}),
        ("is_tied", 1),
        ("theta", 1e20),
        ("theta", 10**30),
        ("theta", float("nan")),
        ("epsilon", -1e-05),
        ("epsilon", "\ud800"),
        ("scaling", {"factor": float("inf")}),
        (
            "scaling",
            {
                "factor": 8.0,
                "low_frequency_factor": 1.0,
                "high_frequency_factor": 4.0,
                "original_length": 10**30,
            },
        ),
    ],
)
def test_a_shape_that_no_model_has_is_no_facts(name: str, value: Any) -> None:
    values = json.loads(find_facts(LLAMA_8B, stored_of(LLAMA_8B)).to_json())
    if name == "attention":
        values["shape"]["kinds"][0]["attention"] |= value
    else:
        values["shape"][name] = value
    with pytest.raises(FactsError):
        ModelFacts.from_json(json.dumps(values))


@pytest.mark.parametrize("count", [-5, 2**60, "7", 1.5])
def test_numbers_that_nobody_counted_are_no_facts(count: object) -> None:
    values = json.loads(find_facts(LLAMA_8B, stored_of(LLAMA_8B)).to_json())
    values["stored"] = {"BF16": count}
    with pytest.raises(FactsError):
        ModelFacts.from_json(json.dumps(values))


def test_words_of_others_are_cut() -> None:
    values = json.loads(find_facts(LLAMA_8B, stored_of(LLAMA_8B)).to_json())
    facts = ModelFacts.from_json(json.dumps(values | {"architecture": "A" * 3000, "fault": "no " * 3000}))
    assert len(facts.architecture) <= 80
    assert len(facts.fault or "") <= 400


def test_what_a_newer_version_adds_is_ignored() -> None:
    facts = find_facts(QWEN_HALF, stored_of(QWEN_HALF))
    values = json.loads(facts.to_json())
    values["more"] = values["shape"]["more"] = 1
    assert ModelFacts.from_json(json.dumps(values)) == facts
    assert issubclass(FactsError, FitError)
