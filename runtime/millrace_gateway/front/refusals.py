"""Judges refusals, and writes them as the clients of a path read them: OpenAI's, or Anthropic's."""

import json
from collections.abc import Mapping

from millrace_gateway.errors import NoReplicaError, RequestRefusedError, UpstreamFailedError
from millrace_gateway.report.metrics import Outcome
from millrace_runtime.contract import PATH_MESSAGES, PATH_RESPONSES

_ANTHROPIC_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def write_refusal(refusal: RequestRefusedError, path: str) -> bytes:
    """Return the JSON body of a refusal."""
    if not path.startswith(PATH_MESSAGES):
        return refusal.body()
    kind = _ANTHROPIC_TYPES.get(refusal.status, "api_error")
    return json.dumps({"type": "error", "error": {"type": kind, "message": refusal.message}}).encode()


def write_event(refusal: RequestRefusedError, path: str) -> bytes:
    """Return a refusal as the last event of a stream that has begun."""
    if path.startswith(PATH_MESSAGES):
        return write_document(write_refusal(refusal, path), path)
    if path == PATH_RESPONSES:
        error = {"type": "error", "code": refusal.code, "message": refusal.message, "param": refusal.param}
        return write_document(json.dumps(error | {"sequence_number": 0}).encode(), path)
    return write_document(refusal.body(), path)


def write_document(document: bytes, path: str) -> bytes:
    """Return a replica's own refusal, or ours, as the last event of a stream."""
    named = b"event: error\n" if path.startswith(PATH_MESSAGES) or path == PATH_RESPONSES else b""
    return named + b"data: " + document.replace(b"\n", b" ") + b"\n\n"


def judge_refusal(refusal: RequestRefusedError) -> Outcome:
    """Return the outcome of a request that ends with a refusal."""
    if isinstance(refusal, NoReplicaError):
        return Outcome.NO_REPLICA
    return Outcome.UPSTREAM_ERROR if isinstance(refusal, UpstreamFailedError) else Outcome.REFUSED
