"""Reads a body of POST /v1/responses.

Nothing is stored: each request brings its whole conversation.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.api.request.decoding import decode_body
from millrace_runtime.api.request.generation_request import (
    AnswerWish,
    GenerationRequest,
    Reading,
    build_request,
)
from millrace_runtime.api.request.messages import MAX_SCHEMA_DEPTH, check_depth, read_messages
from millrace_runtime.api.request.openai_bodies import (
    MAX_ALLOWED,
    MAX_BAD_WORDS,
    MAX_BIASED,
    MAX_STOPS,
    CacheSalt,
    GenerationBody,
    LogitBias,
    Name,
    Penalty,
    Priority,
    Repetition,
    StopString,
    TokenCount,
    TokenId,
    Tools,
    TopLogprobs,
    Variables,
)
from millrace_runtime.api.request.reasoning import Effort, choose_variables
from millrace_runtime.api.request.responses.items import list_messages, list_tools
from millrace_runtime.api.request.responses.tools import choose_tools, list_called, read_tools, write_tools
from millrace_runtime.api.request.structured_outputs import JsonSchema, ResponseFormat, StructuredOutputs
from millrace_runtime.api.request.unsupported_fields import build_refusal
from millrace_runtime.chat.jobs import RenderChat

_AS_MANY_AS_FIT = 2**31 - 1
_LOGPROBS = "message.output_text.logprobs"
"""The value of `include` that asks for log-probabilities."""
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]
"""As much as OpenAI's servers take: an answer holds it until its end."""


class Format(msgspec.Struct, omit_defaults=True):
    """The form of the text."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    """As in JsonSchema."""


class Text(msgspec.Struct):
    """How the answer is written."""

    format: Format | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    """Ignored."""


class Reasoning(msgspec.Struct):
    """How much the model reasons. Further fields are ignored."""

    effort: Effort | None = None
    summary: str | None = None
    """Ignored."""


class Ignored(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields about the sender, and about features that only OpenAI's servers have."""

    access_programs: Any = None
    background_options: Any = None
    client_metadata: Any = None
    context_management: Any = None
    image: Any = None
    include: Any = None
    """Adds fields to an answer. That of `_LOGPROBS` is refused."""
    max_tool_calls: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    request_id: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    session_id: Any = None
    stream_options: Any = None
    user: Any = None


class ResponsesBody(Ignored, kw_only=True):
    """POST /v1/responses."""

    model: Name | None = None
    input: str | Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=4096)]
    instructions: str | None = None
    max_output_tokens: TokenCount | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63 - 1), le=2**63 - 1)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=64)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Repetition | None = None
    logit_bias: Annotated[dict[str, LogitBias], Meta(max_length=MAX_BIASED)] | None = None
    allowed_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_ALLOWED)] | None = None
    bad_words: Annotated[list[StopString], Meta(max_length=MAX_BAD_WORDS)] | None = None
    structured_outputs: StructuredOutputs | None = None
    top_logprobs: TopLogprobs | None = None
    tools: Tools | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    text: Text | None = None
    reasoning: Reasoning | None = None
    include_reasoning: bool | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: Variables | None = None
    truncation: Literal["auto", "disabled"] | None = None
    stream: bool | None = None
    cache_salt: CacheSalt | None = None
    priority: Priority | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    moderation: Any = None
    prompt: Any = None
    metadata: Metadata | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=512)] | None = None
    """The answer repeats the last two; nothing else uses them."""


_SHARED = tuple(
    name
    for name in ResponsesBody.__struct_fields__
    if name in GenerationBody.__struct_fields__ and name != "stream_options"
)
"""Fields that mean the same in OpenAI's older dialects."""


def read_responses(data: bytes | bytearray) -> Reading:
    """Return the request and the prompt of a body of POST /v1/responses. Raises BadRequestError."""
    body = decode_body(data, ResponsesBody)
    _refuse_unsupported(body)
    check_depth(body.chat_template_kwargs, "chat_template_kwargs")
    declared = [*(body.tools or ()), *list_tools(body.input)]
    tools, forced = choose_tools(read_tools(declared), body.tool_choice)
    answer = AnswerWish(
        is_chat=True,
        tools=tools and list_called(tools),
        strict=tuple([tool["function"]["name"] for tool in tools or () if tool["declared"].get("strict")]),
        forced=forced,
        is_one_call=body.parallel_tool_calls is False,
        splits_reasoning=True,
        shows_reasoning=body.include_reasoning is not False,
        echo=_write_echo(body, tools or ()),
    )
    effort = None if body.reasoning is None else body.reasoning.effort
    prompt = RenderChat(
        messages=read_messages(list_messages(body.instructions, body.input)),
        tools=tools and [{"type": "function", "function": tool["function"]} for tool in tools],
        variables=choose_variables(effort, thinks=body.enable_thinking, own=body.chat_template_kwargs),
        is_cut=body.truncation == "auto",
        is_adaptable=True,
    )
    return Reading(_build_request(body, answer), prompt)


def _build_request(body: ResponsesBody, answer: AnswerWish) -> GenerationRequest:
    shared = GenerationBody(
        truncate_prompt_tokens=-1 if body.truncation == "auto" else None,
        response_format=_read_format(body),
        **{name: getattr(body, name) for name in _SHARED},
    )
    request = build_request(shared, 1, body.max_output_tokens, _AS_MANY_AS_FIT, None, answer=answer)
    return request if shared.response_format is None else request.with_grammar_of("text.format")


def _write_echo(body: ResponsesBody, tools: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the fields that an answer repeats as they were sent, with OpenAI's defaults for the others."""
    text = body.text or Text()
    check_depth(body.tool_choice, "tool_choice")
    check_depth(text.format and text.format.schema, "text.format.schema", MAX_SCHEMA_DEPTH)
    drawn = {name: value for name in ("temperature", "top_p") if (value := getattr(body, name)) is not None}
    others = {
        "background": False,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": body.reasoning or Reasoning(),
        "service_tier": "default",
        "text": {"format": text.format or Format("text"), "verbosity": text.verbosity or "medium"},
        "tool_choice": body.tool_choice or "auto",
        "tools": write_tools(tools),
        "top_logprobs": 0,
        "truncation": body.truncation or "disabled",
    }
    return msgspec.json.encode(others | drawn)


def _refuse_unsupported(body: ResponsesBody) -> None:
    """Raise BadRequestError for fields that need stored responses, log-probabilities or moderation."""
    if body.moderation is not None:
        raise build_refusal("moderation")
    for name in ("store", "background", "previous_response_id", "conversation", "prompt"):
        if getattr(body, name):
            raise BadRequestError(
                f"`{name}` is not supported by this server, which stores no response: leave it out, and send "
                "the whole conversation as `input`",
                param=name,
                code="unsupported_parameter",
            )
    wants_logprobs = isinstance(body.include, list) and _LOGPROBS in body.include
    for name, is_wanted in (("top_logprobs", bool(body.top_logprobs)), ("include", wants_logprobs)):
        if is_wanted:
            which = f"`{name}` with `{_LOGPROBS}`" if name == "include" else f"`{name}`"
            raise BadRequestError(
                f"{which} is not supported here: leave it out, or ask /v1/chat/completions",
                param=name,
                code="unsupported_parameter",
            )


def _read_format(body: ResponsesBody) -> ResponseFormat | None:
    wanted = None if body.text is None else body.text.format
    if wanted is None or wanted.type == "text":
        return None
    if body.structured_outputs is not None:
        raise BadRequestError(
            "`text.format` and `structured_outputs` exclude each other: send one", param="structured_outputs"
        )
    if wanted.type == "json_object":
        return ResponseFormat(wanted.type)
    if wanted.schema is None:
        raise BadRequestError("`text.format` of type `json_schema` needs a `schema`", param="text.format")
    return ResponseFormat("json_schema", JsonSchema(wanted.schema, strict=wanted.strict))
