"""Requests that Schemathesis makes up from the OpenAPI document, right ones and wrong ones."""

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from replica import Replica

api = schemathesis.pytest.from_fixture("document")
HELLO = {"model": "scripted", "messages": [{"role": "user", "content": "Say hello"}], "max_tokens": 60}
ABUSES = {
    "no JSON": b"{",
    "no UTF-8": b'{"messages": [{"role": "user", "content": "\xff"}]}',
    "deep": b'{"messages": ' + b"[" * 100_000,
    "a number of a thousand digits": b'{"messages": [], "seed": ' + b"9" * 1000 + b"}",
    "half a surrogate": rb'{"messages": [{"role": "user", "content": "\ud800"}]}',
    "null bytes": rb'{"messages": [{"role": "user", "content": "\u0000"}], "max_tokens": 1}',
    "not finite": b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}',
    "a list": b"[]",
    "nothing": b"",
}


@pytest.fixture(scope="module")
def document(replica: Replica) -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_url(f"{replica.url}/openapi.json")


def assert_served(replica: Replica) -> None:
    """Assert that the next request gets its answer."""
    answer = httpx.post(f"{replica.openai_url}/chat/completions", json=HELLO, timeout=60)
    assert answer.json()["choices"][0]["message"]["content"] == "Hello, wörld 😀!"


@api.parametrize()
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_what_the_document_allows_and_what_it_does_not(case: schemathesis.Case, replica: Replica) -> None:
    response = case.call(timeout=60)
    case.validate_response(response)
    if response.status_code >= 400:
        assert_served(replica)


@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses", "messages"])
@pytest.mark.parametrize("name", ABUSES)
def test_an_abuse_is_refused_and_the_next_request_served(replica: Replica, path: str, name: str) -> None:
    answer = httpx.post(f"{replica.openai_url}/{path}", content=ABUSES[name], timeout=60)
    assert answer.status_code < 500, answer.text
    assert answer.status_code == 400 or name == "null bytes"
    assert_served(replica)
