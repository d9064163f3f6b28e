"""Reads the bodies of POST /tokenize and POST /detokenize, in vLLM's spelling."""

from typing import Any

import msgspec

from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.api.request.decoding import decode_body
from millrace_runtime.api.request.generation_request import PromptWish, Reading, build_request
from millrace_runtime.api.request.openai import read_conversation, read_tools
from millrace_runtime.api.request.openai_bodies import (
    ChatBody,
    Documents,
    GenerationBody,
    Messages,
    Name,
    TokenId,
    Tools,
    Variables,
)
from millrace_runtime.api.request.reasoning import Effort, ReasoningWish, ThinkingSwitch
from millrace_runtime.api.request.unsupported_fields import refuse_unsupported
from millrace_runtime.chat.jobs import EncodeTexts, TextJob


class TokenizeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /tokenize: a text, or a conversation with the fields that make the prompt of a chat."""

    model: Name | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    messages: Messages | None = None
    tools: Tools | None = None
    documents: Documents | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: Any = None
    chat_template_kwargs: Variables | None = None
    reasoning_effort: Effort | None = None
    enable_thinking: bool | None = None
    thinking: ThinkingSwitch | None = None
    reasoning: ReasoningWish | None = None
    media_io_kwargs: Any = None
    mm_processor_kwargs: Any = None


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
        chat = _as_chat(body)
        refuse_unsupported(chat)
        job = read_conversation(chat, read_tools(chat))
    wish = PromptWish(shows_pieces=bool(body.return_token_strs))
    return Reading(build_request(GenerationBody(model=body.model), 1, 1, 1, None, prompt=wish), job)


def _as_chat(body: TokenizeBody) -> ChatBody:
    own = {"prompt", "return_token_strs"}
    return ChatBody(**{name: getattr(body, name) for name in body.__struct_fields__ if name not in own})


def read_detokenize(data: bytes | bytearray) -> Reading:
    """Return the tokens of a body of POST /detokenize. Raises BadRequestError."""
    body = decode_body(data, DetokenizeBody)
    return Reading(build_request(GenerationBody(model=body.model), 1, 1, 1, None), [body.tokens])
