"""Reads the bodies of POST /tokenize and POST /detokenize, in vLLM's spelling."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.api.request.intent import Reading, build_request, decode_body
from millrace_runtime.api.request.messages import MAX_SCHEMA_DEPTH, check_depth, read_messages
from millrace_runtime.api.request.schema import GenerationBody, Name, TokenId
from millrace_runtime.chat.jobs import EncodeTexts, RenderChat, TextJob


class TokenizeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /tokenize: a text, or a conversation."""

    model: Name | None = None
    prompt: str | None = None
    messages: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=4096)] | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /detokenize."""

    model: Name | None = None
    tokens: list[TokenId]


def read_tokenize(data: bytes | bytearray) -> Reading:
    """Return the prompt of a body of POST /tokenize. Raises BadRequestError."""
    body = decode_body(data, TokenizeBody)
    if (body.prompt is None) == (body.messages is None):
        raise BadRequestError("send either `prompt` or `messages`", param="prompt")
    job: TextJob
    if body.prompt is not None:
        job = EncodeTexts([body.prompt], adds_special_tokens=body.add_special_tokens is not False)
    else:
        check_depth(body.tools, "tools", MAX_SCHEMA_DEPTH)
        check_depth(body.chat_template_kwargs, "chat_template_kwargs")
        job = RenderChat(
            messages=read_messages(body.messages or ()),
            tools=body.tools or None,
            add_generation_prompt=body.add_generation_prompt is not False,
            continue_final_message=bool(body.continue_final_message),
            variables=body.chat_template_kwargs or {},
            adds_special_tokens=bool(body.add_special_tokens),
        )
    return Reading(build_request(GenerationBody(model=body.model), 1, 1, 1, None), job)


def read_detokenize(data: bytes | bytearray) -> Reading:
    """Return the tokens of a body of POST /detokenize. Raises BadRequestError."""
    body = decode_body(data, DetokenizeBody)
    return Reading(build_request(GenerationBody(model=body.model), 1, 1, 1, None), [body.tokens])
