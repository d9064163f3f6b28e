"""What becomes of a body whose `model` is replaced, and what the replicas' parser says of it."""

import json
import tracemalloc
from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_gateway.route import body_fields
from millrace_gateway.route.body_fields import (
    LONG_BYTES,
    WHOLE_BYTES,
    MalformedBodyError,
    read_fields,
    replace_model,
)
from millrace_runtime.api.openapi import _BODIES as REPLICAS_BODIES
from millrace_runtime.api.request.decoding import decode_body, decode_mended


@pytest.mark.parametrize(
    "body",
    [
        '{ "model": "a",\n "prompt": "ы 😀" }',
        '{"x":1E+02,"y":-0.0,"model":"a"} \r\n\t',
        f'{{"seed":{"9" * 5000},"model":"a"\n}}',
        '{"z":{ "model" : "a" },"model":"a"}',
        '{"x":1,"model":"c","x":2,"model":"a"}',
        '{"model":"c","mod\\u0065l":"a"}',
        '{"model":"\\u0061","x":"\\u0001\\/}"}',
        '\ufeff{"model":"a"}',
        '{"model":"a","x":"cut \\ud83d"}',
    ],
)
def test_the_model_is_written_once_more_at_the_end_and_nothing_else_changes(body: str) -> None:
    assert read_fields(body.encode()).model == "a"
    end = body.rindex("}")
    assert replace_model(body.encode(), "b") == f'{body[:end]},"model":"b"}}'.encode()


@pytest.mark.parametrize("first", ['"model"', '"mod\\u0065l"'])
@pytest.mark.parametrize("body_type", REPLICAS_BODIES.values())
def test_of_a_repeated_model_replicas_take_the_last(body_type: type[Any], first: str) -> None:
    content = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 7, "input": "hi", "tokens": [1]}
    content["prompt"] = "hi"
    known = {name: value for name, value in content.items() if name in body_type.__struct_fields__}
    text = f'{{{first}:"a", "model":"c",{json.dumps(known)[1:]}'.encode()
    for written in (text, text.replace(b"7", b"7.0")):  # the second is read in another way
        sent = replace_model(replace_model(written, "team/chat"), "b")
        assert decode_body(sent, body_type).model == "b"
        assert orjson.loads(sent)["model"] == "b"


def test_no_body_is_decoded_to_replace_its_model() -> None:
    """A dict of 7 MiB of keys took 141 MiB, and the event loop stood still for 0.4 to 1.5 s."""
    keys = b"".join(b',"%x":0' % number for number in range(100_000))
    body = b'{"mod\\u0065l":"a"%b,"x":{"model":1}}' % keys
    tracemalloc.start()
    sent = replace_model(body, "b")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert json.loads(sent)["model"] == "b"
    assert most < 1.2 * len(body)


@pytest.mark.parametrize("ending", [b'"} x', b"1", b'", "y": 12'])
def test_what_does_not_end_as_an_object_does_not_become_one(ending: bytes) -> None:
    """Of a long body the end is not read."""
    body = b'{"model": "a", "x": "%b%b' % (b"." * WHOLE_BYTES, ending)
    assert read_fields(body).model == "a"
    with pytest.raises(MalformedBodyError):
        replace_model(body, "b")


def test_no_depth_of_a_prompt_fails_otherwise_than_by_a_refusal() -> None:
    """Of those that pass the first parser, the deepest failed in the second one."""
    for depth in range(900, 1100):
        with suppress(MalformedBodyError):
            read_fields(b'{"model":"a","prompt":["x",%b%b]}' % (b"[" * depth, b"]" * depth))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"model": "a"} x',
        b'{"x": NaN, "model": "a"}',
        b'{"model": "\xff"}',
        '{"model": "a"}'.encode("utf-16"),
        b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b', "model": "a"}',
    ],
    ids=range(7),
)
def test_what_replicas_do_not_take_for_json_is_none(body: bytes) -> None:
    with pytest.raises(MalformedBodyError, match=r"\w"):
        read_fields(body)


@pytest.mark.parametrize("field", ["stream", "max_tokens", "n"])
def test_what_a_field_must_not_have_is_not_kept(field: str) -> None:
    """A tenant's million lists would stay in memory, uncounted, until the answer ends."""
    body = b'{"model": "a", "%b": [%b]}' % (field.encode(), b",".join([b"[]"] * 50_000))
    fields = read_fields(body)
    assert (fields.is_stream, fields.most_tokens, fields.num_choices) == (False, None, 1)


@pytest.mark.parametrize(
    ("written", "most"),
    [
        ("7", 7),
        ("0", 0),
        ("9" * 400, 2**31),
        ("-1", None),
        ("7.0", 7),
        ("1.28e2", 128),
        ("7.5", None),
        ("1e999", None),
        ("true", None),
        ("null", None),
    ],
)
def test_the_bound_of_tokens_is_a_whole_number(written: str, most: int | None) -> None:
    assert read_fields(b'{"model": "a", "max_tokens": %b}' % written.encode()).most_tokens == most


@pytest.mark.parametrize(
    "body",
    [
        b'{"x": "cut \\ud83d", "model": "a", "n": 2}',
        b'\xef\xbb\xbf{"n":2,"model":"a","x":{"model":"\\uDC00"}}',
        b'{"n":2,"x":"' + b"." * 9999 + b'","model":"a","y":"\\ud800"}',
    ],
    ids=range(3),
)
def test_replicas_mend_what_clients_cut(body: bytes) -> None:
    """A text that is cut within an emoji stays in a conversation: a refusal would end it for ever."""
    fields = read_fields(body)
    assert (fields.model, fields.num_choices) == ("a", 2)
    assert decode_mended(replace_model(body, "b"), dict)["model"] == "b"


def test_a_long_body_that_replicas_mend_may_have_as_many_sequences_as_they_take() -> None:
    """The gateway does not look for halves of surrogates in 8 MiB, and refuses nobody for them."""
    body = b'{"model": "a", "x": "%b\\ud83d"%b' % (b"." * 300_000, b"}")
    fields = read_fields(body)
    assert (fields.model, fields.is_stream, fields.num_sequences) == ("a", False, 128)
    assert decode_mended(replace_model(body, "b"), dict)["model"] == "b"


TOOLS = '"tools":[{"properties":{"model":{"type":"string"}},"required":["model"],"x":{"model":"b"}}]'
MUCH = f'"messages":["{"." * WHOLE_BYTES}"]'


@pytest.mark.parametrize(
    ("fields", "model"),
    [
        ([MUCH, '"model":"a","stream":true'], "a"),
        ([MUCH, '"model":"a","stream":true', TOOLS], "a"),
        ([MUCH, '"model":"c"', TOOLS, '"model" : "a","stream":true'], "a"),
        (['"model":"a","stream":true', MUCH], "a"),
        ([TOOLS, '"stream":true,"model":"a"', MUCH], "a"),
        (['"model":"a","stream":true', MUCH, TOOLS], "a"),  # as OpenAI's library writes
        (['"model":"a"', MUCH, '"x\\"model":"b"'], "a"),
        ([MUCH, '"model":"a","stream":true', MUCH], None),
        ([MUCH, '"mod\\u0065l":"a"', TOOLS], None),
        ([MUCH, TOOLS], None),
        ([MUCH, '"model":3', TOOLS], None),
        ([MUCH, '"x":[{"model":"b"}%s]' % (',{"model":"b"}' * 20_000)], None),
    ],
    ids=range(12),
)
def test_of_a_body_above_two_mebibytes_only_what_is_around_the_model_is_parsed(
    fields: list[str], model: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An `n` may stand elsewhere, so it counts as the most sequences."""
    parsed: list[int] = []
    decode = body_fields._decode
    monkeypatch.setattr(body_fields, "_decode", lambda body: parsed.append(len(body)) or decode(body))
    found = read_fields("{{{}}}".format(",".join(fields)).encode())
    assert (found.model, found.num_sequences) == (model, 128)
    assert sum(parsed) <= 8 * LONG_BYTES


LONG = [{"role": "user", "content": 'say "model": "x" and {[' * 20_000}]


@pytest.mark.parametrize(
    "body",
    [
        {"messages": LONG, "model": "a", "stream": True, "max_tokens": 7, "n": 2},
        {"model": "a", "stream": True, "max_tokens": 7, "n": 2, "messages": LONG},
        {"stream": True, "max_tokens": 7, "n": 2, "model": "a", "messages": LONG, "tools": [{"model": "b"}]},
        {
            "messages": LONG,
            "z": LONG,
            "model": "a",
            "stream": True,
            "max_tokens": 7,
            "n": 2,
            "tools": [{"model": 3}],
        },
    ],
    ids=["behind the messages", "first", "before the messages", "before another one"],
)
def test_a_long_body_is_read_whole(body: dict[str, object]) -> None:
    text = json.dumps(body).encode()
    fields = read_fields(text)
    assert fields.model == "a"
    assert (fields.is_stream, fields.most_tokens, fields.num_choices) == (True, 7, 2)
    assert json.loads(replace_model(text, "llama")) == body | {"model": "llama"}


@pytest.mark.parametrize("key", ['"model"', '"mod\\u0065l"'])
def test_the_last_model_of_a_long_body_counts(key: str) -> None:
    body = f'{{"messages": {json.dumps(LONG)}, "model": "c", {key}: "a"}}'.encode()
    assert read_fields(body).model == "a"
    assert json.loads(replace_model(body, "b"))["model"] == "b"


@pytest.mark.parametrize("body", [{"messages": [{"model": "b"}, LONG]}, {"x": {"model": "b"}, "y": LONG}])
def test_a_model_deeper_in_a_long_body_is_none(body: dict[str, object]) -> None:
    assert read_fields(json.dumps(body).encode()).model is None


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


@pytest.mark.parametrize(
    ("prompt", "n", "num_choices"),
    [
        ("a", 2, 2),
        ([1, 2, 3], 1, 1),
        (["a", "b", "c"], 2, 6),
        ([[1, 2], [3]], None, 2),
        ([], 1, 1),
        ({"a": 1}, 1, 1),
        (["a"] * 1000, 10**12, 2**31),
        ([[7] * 40] * 100, 1, 100),
        (["a, b" * 20] * 100, 1, 100),
        ([[]] * 5000, 1, 128),
    ],
)
def test_each_prompt_of_a_list_is_answered(prompt: object, n: int | None, num_choices: int) -> None:
    for indent in (None, 2):
        body = json.dumps({"model": "a", "prompt": prompt, "n": n}, indent=indent).encode()
        assert read_fields(body).num_choices == num_choices


def test_all_drawn_answers_count() -> None:
    for fields, num_drawn in ((b'"best_of": 5, "n": 2', 5), (b'"best_of": 2, "prompt": ["a", "b"]', 4)):
        assert read_fields(b'{"model": "a", %b}' % fields).num_choices == num_drawn
