"""Refusals in the shapes of the dialects."""

import json

import pytest

from millrace_gateway.access.errors import UnknownKeyError
from millrace_gateway.errors import BusyError, RequestRefusedError, UpstreamFailedError
from millrace_gateway.front.refusals import write_document, write_event, write_refusal

OPENAI, ANTHROPIC = "/v1/chat/completions", "/v1/messages"


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (UnknownKeyError("no"), "authentication_error"),
        (BusyError("no"), "rate_limit_error"),
        (UpstreamFailedError("no"), "api_error"),
    ],
)
def test_anthropics_clients_get_their_own_shape(refusal: RequestRefusedError, kind: str) -> None:
    for path in (ANTHROPIC, f"{ANTHROPIC}/count_tokens"):
        expected = {"type": "error", "error": {"type": kind, "message": "no"}}
        assert json.loads(write_refusal(refusal, path)) == expected
        first, second, *rest = write_event(refusal, path).split(b"\n")
        assert (first, json.loads(second.removeprefix(b"data: ")), rest) == (
            b"event: error",
            expected,
            [b"", b""],
        )
    assert json.loads(write_refusal(refusal, OPENAI))["error"]["code"] == refusal.code


def test_a_streams_last_event_is_one_line_of_its_dialect() -> None:
    refusal = UpstreamFailedError("it broke off")
    assert write_event(refusal, OPENAI) == b"data: " + refusal.body() + b"\n\n"
    name, data = write_event(refusal, "/v1/responses").rstrip().split(b"\n")
    assert name == b"event: error"
    assert json.loads(data.removeprefix(b"data: ")) == {
        "type": "error",
        "code": "upstream_error",
        "message": "it broke off",
        "param": None,
        "sequence_number": 0,
    }
    assert write_document(b'{"a":\n1}', OPENAI) == b'data: {"a": 1}\n\n'
