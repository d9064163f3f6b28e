"""Which headers cross a proxy. Pure."""

from collections.abc import Mapping

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
_OF_THE_REQUEST = _HOP_BY_HOP | {"host", "content-length", "expect"}


def request_headers(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Return the headers for a replica. Host and length are set later, and `Expect` is answered already."""
    return _without(headers, _OF_THE_REQUEST)


def response_headers(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Return the headers for the client: all but those of the connection to the replica."""
    return _without(headers, _HOP_BY_HOP)


def _without(headers: Mapping[str, str], dropped: frozenset[str]) -> CIMultiDict[str]:
    named = headers.get("Connection")
    if named:
        dropped = dropped | {name.strip().lower() for name in named.split(",")}
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in dropped)
