"""Reads a body of POST /v1/responses: its items become the messages that chat templates know.

Nothing is stored: each request brings its whole conversation.
"""

from typing import Annotated, Any, Literal, NoReturn

import msgspec
from msgspec import Meta

from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.api.request.intent import AnswerWish, Reading, build_request, decode_body, list_strict
from millrace_runtime.api.request.messages import MAX_SCHEMA_DEPTH, check_depth, read_messages
from millrace_runtime.api.request.schema import (
    MAX_TOOLS,
    CacheSalt,
    FunctionName,
    GenerationBody,
    Name,
    Priority,
    TokenCount,
    TopLogprobs,
)
from millrace_runtime.api.request.structured import JsonSchema, ResponseFormat
from millrace_runtime.chat.jobs import RenderChat

_AS_MANY_AS_FIT = 2**31 - 1


class FunctionTool(msgspec.Struct):
    """A function that the model may call. OpenAI's own tools, which its servers run, have another `type`."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Format(msgspec.Struct):
    """What the text must be."""

    type: Literal["text", "json_object", "json_schema"]
    schema: dict[str, Any] | None = None


class Text(msgspec.Struct):
    """How the answer is written."""

    format: Format | None = None
    verbosity: Any = None
    """Ignored."""


class ResponsesBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/responses."""

    model: Name | None = None
    input: str | Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=4096)]
    instructions: str | None = None
    max_output_tokens: TokenCount | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_logprobs: TopLogprobs | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    text: Text | None = None
    stream: bool | None = None
    cache_salt: CacheSalt | None = None
    priority: Priority | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None
    truncation: str | None = None
    reasoning: Any = None
    include: Any = None
    metadata: Any = None
    user: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    service_tier: Any = None
    stream_options: Any = None
    client_metadata: Any = None
    max_tool_calls: Any = None
    """Ignored, from `reasoning` on: who asks, and what only OpenAI's servers have."""


def read_responses(data: bytes | bytearray) -> Reading:
    """Return the request and the prompt of a body of POST /v1/responses. Raises BadRequestError."""
    body = decode_body(data, ResponsesBody)
    _refuse_state(body)
    shared = GenerationBody(
        model=body.model,
        temperature=body.temperature,
        top_p=body.top_p,
        stream=body.stream,
        cache_salt=body.cache_salt,
        priority=body.priority,
        response_format=_read_format(body.text),
    )
    tools = _read_tools(body)
    answer = AnswerWish(
        is_chat=True,
        tools=tools,
        strict=list_strict(body.tools),
        forced=None if tools is None else _read_forced(body.tool_choice),
        is_one_call=body.parallel_tool_calls is False,
        splits_reasoning=True,
    )
    request = build_request(shared, 1, body.max_output_tokens, _AS_MANY_AS_FIT, None, answer=answer)
    return Reading(request, RenderChat(messages=read_messages(_list_messages(body)), tools=tools))


def _refuse_state(body: ResponsesBody) -> None:
    """Raise BadRequestError for what needs a server that remembers."""
    wanted = {
        "store": body.store,
        "background": body.background,
        "previous_response_id": body.previous_response_id,
        "conversation": body.conversation,
        "prompt": body.prompt,
        "top_logprobs": body.top_logprobs,
    }
    for name, value in wanted.items():
        if value:
            raise BadRequestError(
                f"`{name}` is not supported by this server, which stores no response: leave it out, and send "
                "the whole conversation as `input`",
                param=name,
                code="unsupported_parameter",
            )
    if body.truncation not in (None, "disabled"):
        raise BadRequestError("`truncation` may be `disabled` only", param="truncation")


def _read_format(text: Text | None) -> ResponseFormat | None:
    wanted = None if text is None else text.format
    if wanted is None or wanted.type != "json_schema":
        return None if wanted is None else ResponseFormat(wanted.type)
    if wanted.schema is None:
        raise BadRequestError("`text.format` of type `json_schema` needs a `schema`", param="text.format")
    return ResponseFormat("json_schema", JsonSchema(wanted.schema))


def _read_tools(body: ResponsesBody) -> list[dict[str, Any]] | None:
    """Return the tools as chat templates know them, or None. Raises BadRequestError naming what is wrong."""
    if body.tool_choice not in (None, "auto", "none") and not body.tools:
        raise BadRequestError("`tool_choice` needs `tools`", param="tool_choice")
    if not body.tools or body.tool_choice == "none":
        return None
    check_depth(body.tools, "tools", MAX_SCHEMA_DEPTH)
    try:
        tools = msgspec.convert(body.tools, list[FunctionTool])
    except msgspec.ValidationError as error:
        raise BadRequestError(
            f"{error}: only tools of type `function` are supported", param="tools"
        ) from error
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description or "",
                "parameters": tool.parameters or {"type": "object", "properties": {}},
            },
        }
        for tool in tools
    ]


def _read_forced(choice: Any) -> str | None:
    match choice:
        case None | "auto":
            return None
        case "required":
            return ""
        case {"type": "function", "name": str(name)}:
            return name
    raise BadRequestError(
        "`tool_choice` is `auto`, `none`, `required`, or names a function", param="tool_choice"
    )


def _list_messages(body: ResponsesBody) -> list[dict[str, Any]]:
    """Return the conversation. An answer's reasoning, text and calls are items; they become one message."""
    messages: list[dict[str, Any]] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        return [*messages, {"role": "user", "content": body.input}]
    for place, item in enumerate(body.input):
        where = f"input[{place}]"
        check_depth(item, where, MAX_SCHEMA_DEPTH)
        match item:
            case {"type": "function_call_output", "call_id": str(call_id), "output": output}:
                text = output if isinstance(output, str) else _join(output, where)
                messages.append({"role": "tool", "tool_call_id": call_id, "content": text})
            case {
                "type": "function_call",
                "call_id": str(call_id),
                "name": str(name),
                "arguments": str(text),
            }:
                call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}
                _open_answer(messages).setdefault("tool_calls", []).append(call)
            case {"type": "reasoning"}:
                _open_answer(messages)["reasoning_content"] = _join(item.get("content") or [], where)
            case {"role": "assistant", "content": content}:
                if messages and messages[-1]["role"] == "assistant" and messages[-1]["content"]:
                    messages.append({"role": "assistant", "content": ""})  # the former one has its text
                _open_answer(messages)["content"] = (
                    content if isinstance(content, str) else _join(content, where)
                )
            case {"role": str(role), "content": content} if item.get("type", "message") == "message":
                messages.append({"role": role, "content": content})
            case _:
                _refuse_item(item.get("type"), where)
    return messages


def _open_answer(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the assistant's message that is being put together, which may be new."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _join(parts: Any, where: str) -> str:
    if not isinstance(parts, list):
        raise BadRequestError(f"`{where}` is a text or a list of parts", param=where)
    texts = [part.get("text", part.get("refusal")) if isinstance(part, dict) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise BadRequestError(f"`{where}`: only parts with a `text` are supported", param=where)
    return "\n".join(text for text in texts if text)


def _refuse_item(kind: Any, where: str) -> NoReturn:
    raise BadRequestError(
        f"`{where}` of type {kind!r} is not supported: only messages, function_call, function_call_output "
        "and reasoning",
        param=where,
    )
