"""Requests that Schemathesis makes up from the OpenAPI document, right ones and wrong ones."""

import contextlib

import httpx
import pytest
import schemathesis
import schemathesis.specs.openapi.adapter.parameters  # Python 3.11 may fail to parse it beside other threads
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from replica import Replica
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

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


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_what_the_document_allows_and_what_it_does_not(
    document: schemathesis.BaseSchema, replica: Replica, mode: GenerationMode
) -> None:
    failures: list[str] = []
    for found in document.get_all_operations():
        operation = found.ok()

        @settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: schemathesis.Case) -> None:
            response = case.call(timeout=60)
            case.validate_response(response, excluded_checks=[positive_data_acceptance])
            if response.status_code >= 400:
                assert_served(replica)

        try:
            with contextlib.suppress(Unsatisfiable):  # without parameters and body nothing can be wrong
                ask()
        except (AssertionError, BaseExceptionGroup) as failure:
            failures.append(f"{operation.label}: {failure}")
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses", "messages"])
@pytest.mark.parametrize("name", ABUSES)
def test_an_abuse_is_refused_and_the_next_request_served(replica: Replica, path: str, name: str) -> None:
    answer = httpx.post(f"{replica.openai_url}/{path}", content=ABUSES[name], timeout=60)
    assert answer.status_code < 500, answer.text
    assert answer.status_code == 400 or name in ("null bytes", "half a surrogate")
    assert_served(replica)
