"""What the API server's YAML reader makes of a body is what was meant."""

import json

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from millrace_operator.kube.requests import encode_body

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)


@given(TEXTS)
@example("\x7f and \x9b31m")
@example("a\x85b")
@example("\u2028 \u2029 \ufeff \ufffe \uffff")
@example("\x1b[31m \x00 \ud7ff \U0001f600")
def test_a_body_is_the_same_as_yaml_and_as_json(text: str) -> None:
    body = {"kind": "ConfigMap", "data": {text: text}}
    content = encode_body(body)
    assert json.loads(content) == body
    assert yaml.safe_load(content.decode()) == body


@pytest.mark.parametrize(
    "character", ["\x7f", "\x80", "\x85", "\x9f", "\u2028", "\ufeff", "\ufffe", "\uffff"]
)
def test_what_a_yaml_reader_refuses_or_folds_is_escaped(character: str) -> None:
    assert encode_body({"a": character}) == b'{"a":"\\u%04x"}' % ord(character)


def test_what_it_reads_stays_as_it_is() -> None:
    assert encode_body({"a": "naïve 😀"}) == '{"a":"naïve 😀"}'.encode()
