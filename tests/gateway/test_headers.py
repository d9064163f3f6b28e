"""Which headers cross the gateway."""

import pytest
from multidict import CIMultiDict

from millrace_gateway.front.headers import RequestHeaders, drop_credentials, may_be_sent, response_headers
from millrace_runtime.contract import HEADER_CACHE_SALT

SENT = [
    "Accept",
    "Accept-Encoding",
    "Accept-Language",
    "Content-Type",
    "Content-Encoding",
    "User-Agent",
    "X-Request-Id",
    "traceparent",
    "tracestate",
    "b3",
    "X-B3-TraceId",
    "Anthropic-Version",
    "anthropic-beta",
    "openai-beta",
]
KEPT = [
    "Authorization",
    "Proxy-Authorization",
    "Cookie",
    "X-Api-Key",
    "Anthropic-Api-Key",
    "Sec-WebSocket-Protocol",
    "X-Forwarded-For",
    "X-Forwarded-Access-Token",
    "X-Auth-Request-User",
    "Forwarded",
    "baggage",
    "X-Millrace-Draining",
    HEADER_CACHE_SALT,
    HEADER_CACHE_SALT.lower(),
    HEADER_CACHE_SALT.replace("-", "_"),
    "Host",
    "Content-Length",
    "Transfer-Encoding",
    "Expect",
    "TE",
    "Upgrade",
    "Connection",
    "X-Any",
]


HOSTS_OWN = [
    "Access-Control-Allow-Origin",
    "Set-Cookie",
    "Strict-Transport-Security",
    "Clear-Site-Data",
    "Alt-Svc",
    "Keep-Alive",
    "X-Millrace-Draining",
    "Upgrade",
]


def choose(*names: str, more: tuple[str, ...] = (), connection: str = "") -> list[str]:
    headers = CIMultiDict(dict.fromkeys(names, "1") | ({"Connection": connection} if connection else {}))
    return list(RequestHeaders(more).choose(headers))


def test_replicas_get_what_they_may_need_and_nothing_else() -> None:
    assert choose(*SENT, *KEPT) == SENT
    assert choose("accept", "ACCEPT") == ["accept"]
    repeated = CIMultiDict([("Accept", "a"), ("accept", "b")])
    assert RequestHeaders().choose(repeated).getall("Accept") == ["a", "b"]


def test_the_platform_adds_to_the_list_but_nothing_of_the_connection() -> None:
    assert choose("Baggage", "X-Any", more=("baggage",)) == ["Baggage"]
    assert choose("Baggage", more=("baggage",), connection="close, Baggage") == []
    assert choose("Accept", connection="accept") == []
    assert may_be_sent("baggage")
    own = ("X-Millrace-Draining", HEADER_CACHE_SALT)
    for name in ("Host", "content-length", "Transfer-Encoding", *own, "a b", ""):
        assert not may_be_sent(name)


@pytest.mark.parametrize("name", HOSTS_OWN)
def test_a_replica_does_not_speak_for_the_gateways_host(name: str) -> None:
    answered = CIMultiDict({"Content-Type": "text/plain", "X-Any": "1", name: "1"})
    assert list(response_headers(answered)) == ["Content-Type", "X-Any"]


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("/v1/x?key=s", "/v1/x"),
        ("/v1/x?a=%2F&api-key=s&b", "/v1/x?a=%2F&b"),
        ("/v1/x?%6bey=s&a=key", "/v1/x?a=key"),
        ("/v1/x?monkey=1&&a=1", "/v1/x?monkey=1&&a=1"),
        ("/v1/x", "/v1/x"),
    ],
)
def test_credentials_in_a_query_stay_here(path: str, sent: str) -> None:
    assert drop_credentials(path) == sent
