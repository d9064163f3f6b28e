"""The gateway's exceptions, and the bodies of its refusals, in OpenAI's format.

GatewayError
├── ReplicaRefusedError    a replica has not begun the request: another one may take it
├── CannotListenError      an address can't be bound
├── StaleConnectionError   a replica closed an idle connection just as the gateway reused it
└── RequestRefusedError    this request can't be served; carries status, body and headers
    ├── BadRequestError, ModelNotFoundError, BodyTooLargeError, UnsupportedEncodingError, SlowBodyError
    └── BusyError, NoReplicaError, NotSyncedError, UpstreamFailedError
"""

import json
from collections.abc import Mapping
from typing import ClassVar


class GatewayError(Exception):
    """The root of this package's exceptions."""


class ReplicaRefusedError(GatewayError):
    """A replica refused the connection or is draining. It has not begun the request."""


class CannotListenError(GatewayError):
    """An address can't be bound; the message says what to do."""


class StaleConnectionError(GatewayError):
    """A replica closed an idle connection just as the gateway reused it: it likely never got the request."""


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

    def body(self) -> bytes:
        """Return the JSON body that OpenAI's clients parse."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return json.dumps({"error": error}).encode()


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
    """The gateway holds as many bodies as it may."""

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


class UpstreamFailedError(RequestRefusedError):
    """A replica took the request and failed before it answered."""

    status = 502
    type = "server_error"
    code = "upstream_error"


def list_codes() -> list[str]:
    """Return the codes of all refusals."""
    return sorted(refusal.code for refusal in RequestRefusedError.__subclasses__())
