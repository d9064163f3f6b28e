"""Which web pages of other origins a browser lets read the answers. Pure; replica and gateway use it.

Standard library only: the supervisor reads the flag.
"""

import re
from collections.abc import Iterable, Mapping
from http import HTTPMethod

_ORIGIN = re.compile(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:]+\](:[0-9]{1,5})?")
_ANY = "*"
_PREFLIGHT_SECONDS = 600


def parse_origin(text: str) -> str:
    """Return an origin as browsers write it, or `*` for any. Raises ValueError."""
    origin = text.strip().lower()
    if origin != _ANY and not _ORIGIN.fullmatch(origin):
        raise ValueError(f"{text!r} is no origin; write one as browsers do, such as https://chat.example.com")
    return origin


class CorsPolicy:
    """The allowed origins. It allows no cookies: an API key is a header that the page itself adds."""

    def __init__(self, origins: Iterable[str]) -> None:
        """`origins` come from `parse_origin`."""
        self._origins = frozenset(origins)

    def allows(self, origin: str | None) -> bool:
        """Whether pages of this origin may read answers; None: the client is no page."""
        return origin is not None and (_ANY in self._origins or origin.lower() in self._origins)

    def answer_headers(self, origin: str | None) -> dict[str, str]:
        """Return the headers that every answer gets."""
        headers = {} if _ANY in self._origins else {"Vary": "Origin"}
        if origin is not None and self.allows(origin):
            headers["Access-Control-Allow-Origin"] = _ANY if _ANY in self._origins else origin
            headers["Access-Control-Expose-Headers"] = "Retry-After, X-Request-Id"
        return headers

    def preflight_headers(self, method: str, headers: Mapping[str, str]) -> dict[str, str] | None:
        """Return the answer to a browser's question before a request; None for any other request.

        The page may send every header that it asks for: OpenAI's client has a dozen.
        """
        asked = headers.get("access-control-request-method")
        if method != HTTPMethod.OPTIONS or asked is None or not self.allows(headers.get("origin")):
            return None
        wanted = headers.get("access-control-request-headers")
        return (
            self.answer_headers(headers.get("origin"))
            | {"Access-Control-Allow-Methods": "GET, POST", "Access-Control-Max-Age": f"{_PREFLIGHT_SECONDS}"}
            | ({"Access-Control-Allow-Headers": wanted} if wanted else {})
        )
