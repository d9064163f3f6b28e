"""Selects the headers that cross the gateway. Pure.

A client's headers pass by an allow-list: a tenant's pod must not see credentials, cookies, or the headers of
proxies before the gateway. `baggage` is not in the list, because a client's own system may put anything
there. A replica's headers pass, except for those that would apply to the gateway's own host.
"""

import re
from collections.abc import Iterable
from urllib.parse import unquote_plus

from millrace_gateway.http.head import Headers, find_named

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_OWN = b"x-millrace-"
"""The prefix of headers between our own processes."""
_NEVER_SENT = _HOP_BY_HOP | {b"host", b"content-length", b"expect"}
"""The gateway sets host and length itself, and has answered `Expect`."""
_NEVER_RETURNED = _HOP_BY_HOP | {b"alt-svc", b"clear-site-data", b"set-cookie", b"strict-transport-security"}
"""They would apply to the host that all tenants share, as those of _PLATFORMS would."""
_PLATFORMS = b"access-control-"
"""The prefix of headers with which the platform, and no tenant, says which web pages may read answers."""
_SENT = frozenset(
    {
        b"anthropic-beta",
        b"anthropic-version",
        b"b3",
        b"traceparent",
        b"tracestate",
        b"user-agent",
        b"x-request-id",
    }
)
_SENT_PREFIXES = (b"accept", b"content-", b"openai-", b"x-b3-")
_WEBSOCKET = frozenset(
    {b"sec-websocket-key", b"sec-websocket-version", b"sec-websocket-extensions", b"sec-websocket-accept"}
)
_READ_LATER = frozenset({b"origin", b"x-request-id"})
"""The gateway reads them when the answer begins, and for the log."""
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def _match_name(name: str) -> str:
    """Return a pattern for a name in a query, whose characters may be percent-encoded."""
    return "".join(f"(?:{re.escape(one)}|%(?i:{ord(one):02x}))" for one in name)


_CREDENTIALS = re.compile(f"&(?:{_match_name('api-key')}|{_match_name('key')})(?:=[^&]*)?(?=&|$)")
"""Query parameters in which some clients send theirs. One search of the whole query holds the loop for less
time than a look at each parameter: there may be thousands."""


class RequestHeaders:
    """Chooses the headers of a client that a replica gets: the list, and the platform's `more`."""

    def __init__(self, more: Iterable[str] = ()) -> None:
        self._sent = _SENT | {name.lower().encode() for name in more}

    def choose(self, headers: Headers) -> Headers:
        """Return the headers for a replica."""
        named, sent = find_named(headers), self._sent
        return [
            header
            for header in headers
            if (header[0] in sent or header[0].startswith(_SENT_PREFIXES))
            and header[0] not in _NEVER_SENT
            and header[0] not in named
        ]

    def choose_handshake(self, headers: Headers) -> Headers:
        """Return the headers for a replica of a request that asks for a WebSocket."""
        own = [header for header in headers if header[0] in _WEBSOCKET]
        return [*self.choose(headers), *own, (b"connection", b"upgrade"), (b"upgrade", b"websocket")]


def keep_read_later(headers: Headers) -> None:
    """Remove the client's headers that the gateway no longer reads once it has chosen a replica's.

    The client connection's parser has the same list until the next request.
    """
    headers[:] = [header for header in headers if header[0] in _READ_LATER]


def response_headers(headers: Headers) -> Headers:
    """Return a replica's headers for the client, without hop-by-hop headers and our own."""
    named = find_named(headers)
    return [
        header
        for header in headers
        if header[0] not in _NEVER_RETURNED
        and header[0] not in named
        and not header[0].startswith((_OWN, _PLATFORMS))
    ]


def handshake_headers(headers: Headers) -> Headers:
    """Return a replica's headers for the client that gets its WebSocket."""
    return [*response_headers(headers), (b"connection", b"upgrade"), (b"upgrade", b"websocket")]


def drop_credentials(path: str) -> str:
    """Return a path without the credentials in its query; the rest keeps the client's encoding."""
    path, mark, query = path.partition("?")
    if not mark:
        return path
    kept = _CREDENTIALS.sub("", f"&{query}")[1:]
    return f"{path}?{kept}" if kept else path


def find_query(path: str, name: str) -> str:
    """Return the first parameter of this name that has a value in a path's query, decoded; else nothing."""
    found = re.search(f"&{_match_name(name)}=([^&]+)", f"&{path.partition('?')[2]}")
    return unquote_plus(found[1]) if found else ""


def may_be_sent(name: str) -> bool:
    """Whether the platform may add a header of this name to the list."""
    lower = name.lower().encode()
    return bool(_NAME.fullmatch(name)) and lower not in _NEVER_SENT and not lower.startswith(_OWN)
