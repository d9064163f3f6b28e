"""Reads what a request's body asks for, in each endpoint's spelling.

Pure, so that a large body can be read in the text worker.
"""

from collections.abc import Callable
from typing import Any

from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.api.request.intent import Reading, build_request, decode_body
from millrace_runtime.api.request.refusals import refuse_in_message, refuse_unsupported
from millrace_runtime.api.request.schema import MAX_SEQUENCES, ChatBody, ChatMessage, CompletionBody, TextPart
from millrace_runtime.chat.jobs import EncodeTexts, RenderChat, TextJob

_COMPLETION_TOKENS = 16
"""OpenAI's default."""
_CHAT_TOKENS = 2**31 - 1
"""As many as fit."""


def read_completion(data: bytes | bytearray) -> Reading:
    """Return what a body of POST /v1/completions asks for. Raises BadRequestError."""
    body = decode_body(data, CompletionBody)
    refuse_unsupported(body, body.n or 1, adds_special_tokens=True)
    prompts, num_prompts = _read_prompts(body.prompt)
    request = build_request(body, num_prompts, body.max_tokens, _COMPLETION_TOKENS, body.logprobs)
    return Reading(request, prompts)


def _read_prompts(prompt: str | list[Any]) -> tuple[TextJob | list[list[int]], int]:
    if isinstance(prompt, str):
        return EncodeTexts([prompt]), 1
    kinds = {type(item) for item in prompt}
    if kinds == {int}:
        return [prompt], 1
    if len(kinds) > 1:
        raise BadRequestError("`prompt` mixes strings and token ids: send one kind", param="prompt")
    if len(prompt) > MAX_SEQUENCES:
        raise BadRequestError(f"`prompt` has {len(prompt)} items and {MAX_SEQUENCES} may be", param="prompt")
    return (EncodeTexts(prompt) if kinds == {str} else prompt), len(prompt)


def read_chat(data: bytes | bytearray) -> Reading:
    """Return what a body of POST /v1/chat/completions asks for. Raises BadRequestError."""
    body = decode_body(data, ChatBody)
    refuse_unsupported(body, body.n or 1, adds_special_tokens=False)
    if body.top_logprobs and not body.logprobs:
        raise BadRequestError("`top_logprobs` needs `logprobs: true`", param="top_logprobs")
    messages = [_read_message(message, place) for place, message in enumerate(body.messages)]
    max_tokens = body.max_completion_tokens or body.max_tokens
    num_logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return Reading(build_request(body, 1, max_tokens, _CHAT_TOKENS, num_logprobs), RenderChat(messages))


def _read_message(message: ChatMessage, place: int) -> dict[str, Any]:
    where = f"messages[{place}]"
    refuse_in_message(message, where)
    read: dict[str, Any] = {"role": message.role, "content": _read_content(message.content, where)}
    return read if message.name is None else read | {"name": message.name}


def _read_content(content: str | list[TextPart] | None, where: str) -> str:
    if not isinstance(content, list):
        return content or ""
    for part in content:
        if part.type != "text" or part.text is None:
            raise BadRequestError(
                f"only text parts are supported, this one is {part.type!r}", param=f"{where}.content"
            )
    return "\n".join(part.text or "" for part in content)


READERS: dict[str, Callable[[bytes | bytearray], Reading]] = {
    "completion": read_completion,
    "chat": read_chat,
}
"""By the dialect's name, which the text worker gets too."""
