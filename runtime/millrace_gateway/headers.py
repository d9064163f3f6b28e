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
    """Return what a replica gets: the Host and the length are set anew, and `Expect` has been met."""
    return _without(headers, _OF_THE_REQUEST)


def response_headers(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Return what the client gets: all but what concerns the connection to the replica alone."""
    return _without(headers, _HOP_BY_HOP)


def _without(headers: Mapping[str, str], dropped: frozenset[str]) -> CIMultiDict[str]:
    named = headers.get("Connection")
    if named:
        dropped = dropped | {name.strip().lower() for name in named.split(",")}
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in dropped)
