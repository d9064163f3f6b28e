"""The OpenAPI document of a replica. The types that read the bodies describe them; FastAPI parses none."""

from typing import Any

import msgspec
from fastapi import FastAPI

from millrace_runtime import contract
from millrace_runtime.api.request.anthropic.body import MessagesBody, PromptBody
from millrace_runtime.api.request.openai_bodies import ChatBody, CompletionBody, Unsupported
from millrace_runtime.api.request.responses.body import ResponsesBody
from millrace_runtime.api.request.tokenizing import DetokenizeBody, TokenizeBody

_REF = "#/components/schemas/{name}"
_BODIES: dict[str, type[msgspec.Struct]] = {
    contract.PATH_COMPLETIONS: CompletionBody,
    contract.PATH_CHAT_COMPLETIONS: ChatBody,
    contract.PATH_RESPONSES: ResponsesBody,
    contract.PATH_MESSAGES: MessagesBody,
    contract.PATH_COUNT_TOKENS: PromptBody,
    contract.PATH_TOKENIZE: TokenizeBody,
    contract.PATH_DETOKENIZE: DetokenizeBody,
}
_FAILURES = {
    "400": "The request is at fault; the message says what to change.",
    "404": "Another model is served here.",
    "408": "The request did not arrive in time.",
    "413": "The body is too large.",
    "429": "Too much is in flight; Retry-After says when to ask again.",
    "500": "This server failed on the request.",
    "503": "Not ready; Retry-After says when to ask again.",
}


class Failure(msgspec.Struct):
    """What went wrong."""

    type: str
    message: str
    param: str | None = None
    code: str | None = None


class Error(msgspec.Struct):
    """The body of every answer that is not a 200."""

    error: Failure
    type: str = "error"
    """Anthropic's dialect has it."""


class DescribedApi(FastAPI):
    """An application that serves its document at /openapi.json."""

    def openapi(self) -> dict[str, Any]:
        """Return FastAPI's document with bodies and failures. It is built once."""
        if self.openapi_schema is None:
            document = super().openapi()
            _, schemas = msgspec.json.schema_components([*_BODIES.values(), Error], ref_template=_REF)
            for body in _BODIES.values():
                _drop_unsupported(body, schemas[body.__name__])
            document.setdefault("components", {}).setdefault("schemas", {}).update(schemas)
            for path, body in _BODIES.items():
                document["paths"][path]["post"] |= _describe_exchange(body.__name__)
        return super().openapi()


def _drop_unsupported(body: type[msgspec.Struct], schema: dict[str, Any]) -> None:
    """Leave out the fields that are read for their refusal alone."""
    if issubclass(body, Unsupported):
        for name in Unsupported.__annotations__.keys() - body.__annotations__.keys():
            del schema["properties"][name]


def _describe_exchange(body: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": _REF.format(name=body)}}}
    failed = {"application/json": {"schema": {"$ref": _REF.format(name=Error.__name__)}}}
    answer: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}, "text/event-stream": {}}
    return {
        "requestBody": {"required": True, "content": content},
        "responses": {
            "200": {"description": "The answer, or a stream of its events.", "content": answer},
            **{status: {"description": text, "content": failed} for status, text in _FAILURES.items()},
        },
    }
