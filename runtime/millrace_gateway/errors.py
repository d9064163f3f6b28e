"""The gateway's exceptions, and the bodies of its refusals, in OpenAI's format.

GatewayError
├── ReplicaRefusedError    a replica has not begun the request: another one may take it
│   ├── ReplicaDrainingError    it is about to end
│   ├── ReplicaFullError        it computes as much as it can
│   └── TokenRefusedError       it did not accept the gateway's token
├── CannotListenError      an address can't be bound
├── BrokenAnswerError      a replica's answer is no HTTP
└── RequestRefusedError    this request can't be served; carries status, body and headers
    ├── BadHttpError, TargetTooLongError, HeadTooLargeError, SlowHeadError: the connection's own
    ├── BadRequestError, ModelNotFoundError, BodyTooLargeError, UnsupportedEncodingError, SlowBodyError
    ├── NoPathError, BadMethodError, ForbiddenOriginError
    ├── GatewayKeyMissingError, LimitedWebSocketError
    └── BusyError, ExhaustedError, NoReplicaError, NotSyncedError, DrainingError, UpstreamFailedError
"""

import json
from collections.abc import Mapping
from typing import ClassVar


class GatewayError(Exception):
    """The root of this package's exceptions."""


class ReplicaRefusedError(GatewayError):
    """A replica refused the connection or is draining. It has not begun the request."""


class ReplicaDrainingError(ReplicaRefusedError):
    """A replica is about to end."""


class ReplicaFullError(ReplicaRefusedError):
    """A replica computes as much as it can, and another one may have room."""


class TokenRefusedError(ReplicaRefusedError):
    """A replica did not accept the gateway's token: a clock is off."""


class CannotListenError(GatewayError):
    """An address can't be bound; the message says what to do."""


class BrokenAnswerError(GatewayError):
    """A replica's answer is no HTTP."""


class RequestRefusedError(GatewayError):
    """A request that can't be served: its status, and its body in OpenAI's format."""

    status: ClassVar[int]
    type: ClassVar[str] = "invalid_request_error"
    code: ClassVar[str]
    param: ClassVar[str | None] = None

    def __init__(self, message: str, retry_after_seconds: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_seconds = retry_after_seconds

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the answer, beside its content type."""
        return {} if self.retry_after_seconds is None else {"Retry-After": str(self.retry_after_seconds)}

    @property
    def lines(self) -> list[tuple[bytes, bytes]]:
        """The headers of the answer, with its content type."""
        more = [(name.lower().encode(), value.encode()) for name, value in self.headers.items()]
        return [(b"content-type", b"application/json"), *more]

    def body(self) -> bytes:
        """Return the JSON body that OpenAI's clients parse."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return json.dumps({"error": error}).encode()


class BadHttpError(RequestRefusedError):
    """The bytes of a connection are no request, or may be read in two ways."""

    status = 400
    code = "bad_http"


class HeadTooLargeError(RequestRefusedError):
    """A request's head is longer than the gateway's limit."""

    status = 431
    code = "head_too_large"


class TargetTooLongError(RequestRefusedError):
    """A request's path with its query is longer than the gateway's limit."""

    status = 414
    code = "target_too_long"


class SlowHeadError(RequestRefusedError):
    """A head did not arrive in time."""

    status = 408
    code = "head_timeout"


class NoPathError(RequestRefusedError):
    """The gateway has nothing at this path."""

    status = 404
    code = "not_found"


class BadMethodError(RequestRefusedError):
    """The path has another method."""

    status = 405
    code = "method_not_allowed"


class ForbiddenOriginError(RequestRefusedError):
    """A web page of an origin that may not call the gateway asks for a WebSocket."""

    status = 403
    code = "forbidden_origin"


class BadRequestError(RequestRefusedError):
    """The body names no model."""

    status = 400
    code = "invalid_body"
    param = "model"


class ModelNotFoundError(RequestRefusedError):
    """No service has this Host or model name."""

    status = 404
    code = "model_not_found"
    param = "model"


class SlowBodyError(RequestRefusedError):
    """The body did not arrive in time."""

    status = 408
    code = "request_timeout"


class BusyError(RequestRefusedError):
    """The gateway holds as many bodies and heads as it may."""

    status = 429
    type = "overloaded_error"
    code = "gateway_overloaded"


class BodyTooLargeError(RequestRefusedError):
    """The body is longer than the gateway's limit."""

    status = 413
    code = "request_too_large"


class UnsupportedEncodingError(RequestRefusedError):
    """The body is compressed, so its model can't be read."""

    status = 415
    code = "unsupported_encoding"


class ExhaustedError(RequestRefusedError):
    """The gateway's own process or node has no descriptor, memory or port left for a connection."""

    status = 503
    type = "server_error"
    code = "gateway_exhausted"


class NoReplicaError(RequestRefusedError):
    """The service exists, but has no replica that can answer now."""

    status = 503
    type = "server_error"
    code = "no_ready_replica"


class NotSyncedError(RequestRefusedError):
    """The gateway has just started and does not know the services yet."""

    status = 503
    type = "server_error"
    code = "gateway_starting"


class DrainingError(RequestRefusedError):
    """The gateway ends, and the request would still wait."""

    status = 503
    type = "server_error"
    code = "gateway_draining"


class UpstreamFailedError(RequestRefusedError):
    """A replica took the request and failed before it answered."""

    status = 502
    type = "server_error"
    code = "upstream_error"


class GatewayKeyMissingError(RequestRefusedError):
    """The gateway can sign no token that the replica accepts."""

    status = 503
    type = "server_error"
    code = "gateway_key_missing"


class LimitedWebSocketError(RequestRefusedError):
    """A WebSocket for a service with keys or limits."""

    status = 403
    code = "websocket_limited"


def list_codes() -> list[str]:
    """Return the codes of all refusals."""
    return sorted(refusal.code for refusal in RequestRefusedError.__subclasses__())
