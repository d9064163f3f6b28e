"""The refusals of this package, in OpenAI's format, and its errors about unreadable input.

PolicyError            the platform's default policy can't be read
PeerReportError        another gateway sent bytes that are no report
MissingKeyError        401: the service needs an API key, and the request carries none
UnknownKeyError        401: the service's Secret has no such key
ModelNotAllowedError   403: the key is known, but not for this service
KeysUnavailableError   503: the gateway has no Secret with the service's keys
RateLimitedError       429: a limit is reached
"""

from collections.abc import Mapping

from millrace_gateway.errors import GatewayError, RequestRefusedError

_CHALLENGE = {"WWW-Authenticate": "Bearer"}


class PolicyError(GatewayError):
    """The platform's default policy can't be read; the message says what to write."""


class PeerReportError(GatewayError):
    """Another gateway sent bytes that are no report."""


class MissingKeyError(RequestRefusedError):
    """The service needs an API key, and the request carries none."""

    status = 401
    code = "missing_api_key"

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the answer, beside its content type."""
        return _CHALLENGE


class UnknownKeyError(RequestRefusedError):
    """The service's Secret has no such key."""

    status = 401
    code = "invalid_api_key"

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the answer, beside its content type."""
        return _CHALLENGE


class ModelNotAllowedError(RequestRefusedError):
    """The key is known, but not for this service."""

    status = 403
    code = "model_not_allowed"
    param = "model"


class KeysUnavailableError(RequestRefusedError):
    """The service needs keys, and the gateway has no Secret with them."""

    status = 503
    type = "server_error"
    code = "keys_unavailable"


class RateLimitedError(RequestRefusedError):
    """A limit of requests or tokens a minute, or of requests at once, is reached."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"

    def __init__(self, message: str, wait_seconds: float, headers: Mapping[str, str]) -> None:
        """`wait_seconds`: until the same request would be admitted; `headers`: the state of the limits."""
        super().__init__(message)
        self._headers = headers
        self.wait_seconds = wait_seconds

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the answer: OpenAI's clients read retry-after-ms, all others Retry-After."""
        return {
            **self._headers,
            "Retry-After": str(max(1, -int(-self.wait_seconds // 1))),
            "retry-after-ms": str(max(1, -int(-self.wait_seconds * 1000 // 1))),
        }
