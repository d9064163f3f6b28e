"""The errors that a client gets when its request fails: in OpenAI's shape, with a status.

ApiError                        any refusal or failure, with its HTTP status
├── BadRequestError             400: the request is at fault; `param` names the field
│   ├── GatewayTokenError       401: the request has no valid token of the gateway
│   ├── ModelNotFoundError      404: another model is served here
│   ├── RequestTimeoutError     408: head or body did not arrive in time
│   ├── BodyTooLargeError       413: the body is over the limit
│   └── HeadTooLargeError       431: request line and headers are over the limit
├── OverloadedError             429: admission's limits are reached; Retry-After says when to retry
├── UnavailableError            503: loading, draining, no engine, or too busy; Retry-After
└── GenerationError             500: the engine or the text worker failed on this request
ClientGoneError                 the client closed its connection, so it gets no answer
"""

from typing import Any

import orjson

from millrace_runtime.protocol.step import FAULT_NOTHING_ALLOWED


class ApiError(Exception):
    """A refusal or failure with the HTTP status to answer."""

    status = 500
    error_type = "server_error"
    reason = "error"
    """Label of the rejection metric."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after

    def encode(self) -> bytes:
        """Return OpenAI's JSON error body."""
        body: dict[str, Any] = {
            "message": self.message,
            "type": self.error_type,
            "param": self.param,
            "code": self.code,
        }
        return orjson.dumps({"error": body})


class BadRequestError(ApiError):
    """The request is at fault; the message says what to change."""

    status = 400
    error_type = "invalid_request_error"
    reason = "bad_request"


class GatewayTokenError(BadRequestError):
    """The request has no valid token of the gateway."""

    status = 401


class ModelNotFoundError(BadRequestError):
    """Another model is served here."""

    status = 404
    reason = "model_not_found"


class BodyTooLargeError(BadRequestError):
    """The body is over the server's limit."""

    status = 413
    reason = "body_too_large"


class HeadTooLargeError(BadRequestError):
    """Request line and headers are over the server's limit."""

    status = 431
    reason = "head_too_large"


class RequestTimeoutError(BadRequestError):
    """The client did not send its request in time."""

    status = 408
    reason = "read_timeout"


class OverloadedError(ApiError):
    """Admission's limits are reached."""

    status = 429
    error_type = "overloaded_error"
    reason = "overloaded"


class UnavailableError(ApiError):
    """The request can't be served here now: loading, draining, no engine, or a short text took too long."""

    status = 503
    error_type = "unavailable_error"
    reason = "unavailable"


class GenerationError(ApiError):
    """The engine or the text worker failed on this request."""

    reason = "failed"


class ClientGoneError(Exception):
    """The client closed its connection."""


def explain_fault(fault: str | None) -> ApiError:
    """Return the client's error for the engine's fault on its sequence."""
    if fault == FAULT_NOTHING_ALLOWED:
        return BadRequestError(
            "the request's fields together leave no token that may come next: loosen `bad_words`, "
            "`allowed_token_ids`, `min_tokens` or the form that the answer must have"
        )
    return GenerationError(fault or "the engine failed on this sequence")
