"""The bodies of OpenAI's requests, every number, list and string bounded.

A field that means something here is declared with its type. One that would change the answer but is not
supported is declared as Any and refused by `refusals.py`. Others are ignored, as OpenAI's servers do.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

MAX_CHOICES = 16
MAX_SEQUENCES = 128
"""Prompts times choices of one request."""
MAX_STOPS = 16
MAX_TOP_LOGPROBS = 20
_INT63 = 2**63 - 1

Name = Annotated[str, Meta(max_length=256)]
TokenCount = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
StopString = Annotated[str, Meta(min_length=1, max_length=256)]
Role = Annotated[str, Meta(min_length=1, max_length=64)]


class StreamOptions(msgspec.Struct):
    """What a stream carries besides text."""

    include_usage: bool | None = None


class Unsupported(msgspec.Struct, kw_only=True):
    """Fields that would change the answer and that this server can't honour yet."""

    best_of: Any = None
    logit_bias: Any = None
    suffix: Any = None
    echo: Any = None
    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    response_format: Any = None
    modalities: Any = None
    audio: Any = None
    chat_template: Any = None
    chat_template_kwargs: Any = None
    documents: Any = None
    add_generation_prompt: Any = None
    continue_final_message: Any = None
    prompt_embeds: Any = None
    prompt_logprobs: Any = None
    truncate_prompt_tokens: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    min_tokens: Any = None
    repetition_penalty: Any = None
    use_beam_search: Any = None


class GenerationBody(Unsupported, kw_only=True):
    """The parameters that both endpoints share. null means the default."""

    model: Name | None = None
    max_tokens: TokenCount | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-_INT63, le=_INT63)] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=64)] | None = None
    ignore_eos: bool | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


TopLogprobs = Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)]


class CompletionBody(GenerationBody, kw_only=True):
    """POST /v1/completions."""

    prompt: str | Annotated[list[str | int | list[int]], Meta(min_length=1)]
    logprobs: TopLogprobs | None = None


class TextPart(msgspec.Struct):
    """A part of a message's content; only type "text" is supported."""

    type: Role
    text: str | None = None


class ChatMessage(msgspec.Struct):
    """One message of a conversation."""

    role: Role
    content: str | Annotated[list[TextPart], Meta(max_length=1024)] | None = None
    name: Name | None = None
    tool_calls: Any = None
    function_call: Any = None


class ChatBody(GenerationBody, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=4096)]
    max_completion_tokens: TokenCount | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
