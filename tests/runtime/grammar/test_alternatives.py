"""What is said to have no value in common has none: alternatives, and patterns without their look-ahead."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_runtime.grammar.errors import GrammarError
from millrace_runtime.grammar.json_schema.alternatives import Alternatives
from millrace_runtime.grammar.json_schema.patterns import split_pattern
from tests.runtime.grammar.fitting import open_schema
from tests.runtime.grammar.validity import TYPES, fits

TAG = {"type": "object", "properties": {"k": {"const": 1}}}
OTHER = {"type": "object", "properties": {"k": {"enum": [2, 3]}}}
CLOSED = {"type": "object", "properties": {"a": {}}, "required": ["a"], "additionalProperties": False}
SEPARATE = [
    [{"type": "string"}, {"type": "integer"}],
    [{"type": ["string", "null"]}, {"enum": [1, True]}],
    [{"const": 1}, {"const": True}],
    [TAG, {"$ref": "#/$defs/Other"}],
    [{"oneOf": [TAG, OTHER]}, {"allOf": [{"type": "object", "properties": {"k": {"const": "1"}}}]}],
    [CLOSED, {**CLOSED, "properties": {"b": {}}, "required": ["b"]}],
    [CLOSED, {"type": "object", "properties": {"a": False}}],
    [{"anyOf": [{"type": "null"}, {"type": "array"}]}, {"type": "object"}],
]
COMMON = [
    [{"type": "number"}, {"type": "integer"}],
    [{"const": 1}, {"const": 1.0}],
    [TAG, {"type": "object", "properties": {"k": {"enum": [1, 2]}}}],
    [{**TAG, "type": ["object", "null"]}, {**OTHER, "required": ["k"], "type": ["object", "null"]}],
    [CLOSED, {"type": "object", "patternProperties": {"^a": {}}, "additionalProperties": False}],
    [{"type": "object", "required": ["a"]}, {"type": "object", "required": ["b"]}],
    [{"$ref": "#/$defs/Loop"}, {"type": "string"}],
    [True, {"type": "string"}],
]


@pytest.mark.parametrize(
    ("options", "is_separate"), [*((one, True) for one in SEPARATE), *((one, False) for one in COMMON)]
)
def test_alternatives_are_separated(options: list[Any], *, is_separate: bool) -> None:
    root = {"oneOf": options, "$defs": {"Other": OTHER, "Loop": {"$ref": "#/$defs/Loop"}}}
    assert Alternatives(root).separate(root) == is_separate


VALUES: list[Any] = [None, True, 1, 2.5, "a", [], {}, {"a": 1}, {"a": "a"}, {"a": 1, "b": True}, {"b": None}]
SCHEMAS = st.recursive(
    st.one_of(
        st.booleans(),
        st.builds(lambda name: {"type": name}, st.sampled_from(sorted(TYPES))),
        st.builds(lambda values: {"enum": values}, st.lists(st.sampled_from(VALUES), min_size=1, max_size=2)),
    ),
    lambda inner: st.one_of(
        st.dictionaries(
            st.sampled_from(["anyOf", "allOf", "oneOf"]), st.lists(inner, min_size=1, max_size=2), min_size=1
        ),
        st.fixed_dictionaries(
            {"properties": st.dictionaries(st.sampled_from("ab"), inner)},
            optional={
                "type": st.just("object"),
                "required": st.lists(st.sampled_from("ab"), unique=True),
                "additionalProperties": st.booleans(),
            },
        ),
    ),
    max_leaves=6,
)


@given(st.lists(SCHEMAS, min_size=2, max_size=3))
def test_a_value_fits_one_of_separate_alternatives_at_most(options: list[Any]) -> None:
    root = {"oneOf": options}
    if Alternatives(root).separate(root):
        assert [value for value in VALUES if sum(fits(value, option, {}) for option in options) > 1] == []


AHEAD = ["(?=a)", "(?=.*b)", "(?=(a|b)+$)", "(?!^[ab]*$)", "(?![^a]+$)", r"(?!\d*$)", "(?!a)", r"(?=\)|[)])"]
REST = ["", "a*$", "[ab1)(|]*", "b|a", "(b|a)1?$", "(?=a)b", r"\|"]


@given(st.lists(st.sampled_from(AHEAD), max_size=3), st.sampled_from(REST), st.text("ab1)(|", max_size=4))
def test_patterns_without_look_ahead_match_the_same(ahead: list[str], rest: str, text: str) -> None:
    pattern = f"^{''.join(ahead)}{rest}"
    is_match = re.search(pattern, text) is not None
    assert all(re.search(part, text) for part in split_pattern(pattern)) == is_match


def test_a_number_of_pydantics_has_no_look_ahead_left() -> None:
    decimal = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"
    assert split_pattern(decimal) == [r"^[+-]?0*\d*\.?\d*$", "[^-+.]"]
    assert split_pattern("^a(?=b)") == ["^a(?=b)"]


def test_many_values_are_alternatives() -> None:
    options = [{"const": f"c{number}", "title": "x"} for number in range(300)]
    assert open_schema({"oneOf": options}).fits('"c299"')


def test_what_is_no_tag_stays_optional() -> None:
    text, unit = {"type": "string"}, {"enum": ["C", "F"]}
    one = {"type": "object", "properties": {"unit": unit, "of": text}, "required": ["of"]}
    assert open_schema({"oneOf": [one]}).fits('{"of":"a"}')
    kinds = [
        {"type": "object", "properties": {"unit": values, "type": {"const": kind}}, "required": ["type"]}
        for kind, values in (("temp", unit), ("mass", {"enum": ["g"]}))
    ]
    assert open_schema({"oneOf": kinds}).fits('{"type":"temp"}')


def test_a_tag_of_one_union_proves_nothing_about_another() -> None:
    first, second = ({"type": "object", "properties": {"k": {"const": number}}} for number in (1, 2))
    closed = {"type": "object", "properties": {"x": {"type": "integer"}}, "additionalProperties": False}
    reference = {"$ref": "#/$defs/First"}
    unions = {"p": {"oneOf": [reference, second]}, "q": {"oneOf": [reference, closed]}}
    with pytest.raises(GrammarError, match="#/properties/q/oneOf"):
        open_schema({"type": "object", "$defs": {"First": first}, "properties": unions})
