"""Which headers cross the gateway."""

import pytest

from millrace_gateway.front.headers import (
    RequestHeaders,
    drop_credentials,
    find_query,
    may_be_sent,
    response_headers,
)
from millrace_gateway.http.head import Headers
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


def encode(*names: str) -> Headers:
    return [(name.lower().encode(), b"1") for name in names]


def choose(*names: str, more: tuple[str, ...] = (), connection: str = "") -> list[str]:
    headers = encode(*names) + ([(b"connection", connection.encode())] if connection else [])
    return [name.decode() for name, _ in RequestHeaders(more).choose(headers)]


def test_replicas_get_what_they_may_need_and_nothing_else() -> None:
    assert choose(*SENT, *KEPT) == [name.lower() for name in SENT]
    repeated = [(b"accept", b"a"), (b"accept", b"b")]
    assert RequestHeaders().choose(repeated) == repeated


def test_the_platform_adds_to_the_list_but_nothing_of_the_connection() -> None:
    assert choose("Baggage", "X-Any", more=("baggage",)) == ["baggage"]
    assert choose("Baggage", more=("baggage",), connection="close, Baggage") == []
    assert choose("Accept", connection="accept") == []
    twice = [(b"accept", b"1"), (b"connection", b"close"), (b"connection", b"Accept")]
    assert RequestHeaders().choose(twice) == []
    assert may_be_sent("baggage")
    own = ("X-Millrace-Draining", HEADER_CACHE_SALT)
    for name in ("Host", "content-length", "Transfer-Encoding", *own, "a b", ""):
        assert not may_be_sent(name)


@pytest.mark.parametrize("name", HOSTS_OWN)
def test_a_replica_does_not_speak_for_the_gateways_host(name: str) -> None:
    kept = encode("Content-Type", "X-Any")
    assert response_headers([*kept, *encode(name)]) == kept


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("/v1/x?key=s", "/v1/x"),
        ("/v1/x?a=%2F&api-key=s&b", "/v1/x?a=%2F&b"),
        ("/v1/x?%6bey=s&a=key", "/v1/x?a=key"),
        ("/v1/x?monkey=1&&a=1", "/v1/x?monkey=1&&a=1"),
        ("/v1/x?key=s&API-key=t&%61pi-%6B%65y=u&key&a=1&key=v", "/v1/x?API-key=t&a=1"),
        ("/v1/x?a&keys=1&key-=2&%256bey=3&", "/v1/x?a&keys=1&key-=2&%256bey=3&"),
        ("/v1/x", "/v1/x"),
    ],
)
def test_credentials_in_a_query_stay_here(path: str, sent: str) -> None:
    assert drop_credentials(path) == sent


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/v1/stream?a=1&mo%64el=a%2Fb+c&model=d", "a/b c"),
        ("/v1/stream?model=&model=b", "b"),
        ("/v1/stream?amodel=1&models=2&b=model=3", ""),
        ("/v1/stream/model=1", ""),
    ],
)
def test_a_query_names_a_model(path: str, model: str) -> None:
    assert find_query(path, "model") == model
