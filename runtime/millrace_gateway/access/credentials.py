"""The API key of a request. Pure."""

from collections.abc import Mapping

from millrace_gateway.access.errors import UnknownKeyError

_OWN_HEADERS = ("api-key", "x-api-key")
"""As Azure's and Anthropic's clients send it."""


def read_credentials(headers: Mapping[str, str]) -> str | None:
    """Return the key in the headers, whose names are in lower case; None if there is none.

    Raises UnknownKeyError for two different keys: a proxy before the gateway may have checked the other one.
    """
    found = {headers[name].strip() for name in _OWN_HEADERS if name in headers}
    scheme, _, token = headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer":
        found.add(token.strip())
    found.discard("")
    if len(found) > 1:
        raise UnknownKeyError(
            "The request carries two different API keys. Send one, in Authorization, api-key or x-api-key."
        )
    return next(iter(found), None)
