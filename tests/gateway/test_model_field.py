"""What becomes of a body whose `model` is replaced, and what the replicas' parser says of it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_gateway.route.routing import MalformedBodyError, read_model, replace_model


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        ('{ "model": "a",\n "prompt": "ы 😀" }', '{"model":"b","prompt":"ы 😀"}'),
        ('{"x":1E+02,"y":-0.0,"model":"a"}', '{"x":1E+02,"y":-0.0,"model":"b"}'),
        (f'{{"seed":{"9" * 5000},"model":"a"}}', f'{{"seed":{"9" * 5000},"model":"b"}}'),
        ('{"z":{ "model" : "a" },"model":"a"}', '{"z":{ "model" : "a" },"model":"b"}'),
        ('{"x":1,"model":"c","x":2,"model":"a"}', '{"x":2,"model":"b"}'),
        ('{"model":"c","mod\\u0065l":"a"}', '{"model":"b"}'),
        ('{"model":"\\u0061","x":"\\u0001\\/"}', '{"model":"b","x":"\\u0001\\/"}'),
    ],
)
def test_only_the_model_is_replaced(body: str, sent: str) -> None:
    assert read_model(body.encode()) == "a"
    assert replace_model(body.encode(), "b") == sent.encode()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"model": "a"} x',
        b'{"x": NaN, "model": "a"}',
        b'{"x": "\\ud800", "model": "a"}',
        b'{"\xff": 1, "model": "a"}',
        b'{"model": "\xff"}',
        '{"model": "a"}'.encode("utf-16"),
        b'\xef\xbb\xbf{"model": "a"}',
        b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b', "model": "a"}',
    ],
    ids=range(10),
)
def test_what_replicas_do_not_take_for_json_is_none(body: bytes) -> None:
    with pytest.raises(MalformedBodyError, match=r"\w"):
        read_model(body)


@given(
    st.dictionaries(
        st.text(),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
    )
)
def test_what_json_can_say_is_said_again(fields: dict[str, object]) -> None:
    body = json.dumps(fields | {"model": "team/chat"}).encode()
    assert json.loads(replace_model(body, "llama")) == fields | {"model": "llama"}
