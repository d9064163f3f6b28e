"""Selects the headers that cross the gateway. Pure.

A client's headers pass by an allow-list: a tenant's pod must not see credentials, cookies, or the headers of
proxies before the gateway. `baggage` is not in the list, because a client's own system may put anything
there. A replica's headers pass, except for those that would apply to the gateway's own host.
"""

import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote_plus

from multidict import CIMultiDict

_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_OWN = "x-millrace-"
"""The prefix of headers between our own processes."""
_NEVER_SENT = _HOP_BY_HOP | {"host", "content-length", "expect"}
"""The gateway sets host and length itself, and has answered `Expect`."""
_NEVER_RETURNED = _HOP_BY_HOP | {"alt-svc", "clear-site-data", "set-cookie", "strict-transport-security"}
"""They would apply to the host that all tenants share, as those of _PLATFORMS would."""
_PLATFORMS = "access-control-"
"""The prefix of headers with which the platform, and no tenant, says which web pages may read answers."""
_SENT = frozenset(
    {
        "anthropic-beta",
        "anthropic-version",
        "b3",
        "traceparent",
        "tracestate",
        "user-agent",
        "x-request-id",
    }
)
_SENT_PREFIXES = ("accept", "content-", "openai-", "x-b3-")
_CREDENTIALS = frozenset({"api-key", "key"})
"""Query parameters in which some clients send theirs."""
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


class RequestHeaders:
    """Chooses the headers of a client that a replica gets: the list, and the platform's `more`."""

    def __init__(self, more: Iterable[str] = ()) -> None:
        self._sent = _SENT | {name.lower() for name in more}

    def choose(self, headers: Mapping[str, str]) -> CIMultiDict[str]:
        """Return the headers for a replica."""
        dropped = _drop_named(headers, _NEVER_SENT)
        found: CIMultiDict[str] = CIMultiDict()
        for name, value in headers.items():
            lower = name.lower()
            if (lower in self._sent or lower.startswith(_SENT_PREFIXES)) and lower not in dropped:
                found.add(name, value)
        return found


def response_headers(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Return a replica's headers for the client, without hop-by-hop headers and our own."""
    dropped = _drop_named(headers, _NEVER_RETURNED)
    return CIMultiDict(
        (name, value)
        for name, value in headers.items()
        if (lower := name.lower()) not in dropped and not lower.startswith((_OWN, _PLATFORMS))
    )


def drop_credentials(path: str) -> str:
    """Return a path without the credentials in its query; the rest keeps the client's encoding."""
    path, mark, query = path.partition("?")
    kept = [part for part in query.split("&") if unquote_plus(part.partition("=")[0]) not in _CREDENTIALS]
    return f"{path}?{'&'.join(kept)}" if mark and kept else path


def may_be_sent(name: str) -> bool:
    """Whether the platform may add a header of this name to the list."""
    lower = name.lower()
    return bool(_NAME.fullmatch(name)) and lower not in _NEVER_SENT and not lower.startswith(_OWN)


def _drop_named(headers: Mapping[str, str], dropped: frozenset[str]) -> frozenset[str]:
    """Return the dropped headers, with those that `Connection` names."""
    named = headers.get("Connection")
    return dropped | {name.strip().lower() for name in named.split(",")} if named else dropped
