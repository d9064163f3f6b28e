"""Reads a body of POST /v1/messages: Anthropic's blocks become the messages that chat templates know."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.api.request.intent import AnswerWish, Reading, build_request, decode_body, list_strict
from millrace_runtime.api.request.messages import MAX_SCHEMA_DEPTH, check_depth, read_messages
from millrace_runtime.api.request.schema import (
    MAX_STOPS,
    MAX_TOOLS,
    FunctionName,
    GenerationBody,
    Name,
    StopString,
    TokenCount,
)
from millrace_runtime.api.request.structured import JsonSchema, ResponseFormat
from millrace_runtime.chat.jobs import RenderChat

_TEMPLATE_ROLES = ("user", "assistant", "system")


class AnthropicTool(msgspec.Struct):
    """A tool that the model may call. Anthropic's own, which its servers run, have another `type`."""

    name: FunctionName
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    type: Literal["custom"] | None = None


class ToolChoice(msgspec.Struct):
    """Whether tools must be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct):
    """Whether the client wants to see the reasoning."""

    type: str


class OutputFormat(msgspec.Struct):
    """What the text must be."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct):
    """How the answer is written."""

    format: OutputFormat | None = None
    effort: Any = None
    """Ignored."""


class PromptBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What makes the prompt; POST /v1/messages/count_tokens takes it alone."""

    model: Name | None = None
    messages: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=4096)]
    system: str | list[dict[str, Any]] | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    cache_control: Any = None
    context_management: Any = None
    """Ignored: how Anthropic's servers keep prompts."""
    output_config: OutputConfig | None = None


class MessagesBody(PromptBody, kw_only=True):
    """POST /v1/messages."""

    max_tokens: TokenCount
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    stop_sequences: Annotated[list[StopString], Meta(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    metadata: Any = None
    service_tier: Any = None
    """Ignored: who asks, and how soon it is served."""


def read_anthropic(data: bytes | bytearray) -> Reading:
    """Return the request and the prompt of a body of POST /v1/messages. Raises BadRequestError."""
    body = decode_body(data, MessagesBody)
    shared = GenerationBody(
        model=body.model,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        stop=body.stop_sequences,
        stream=body.stream,
        response_format=_read_format(body.output_config),
    )
    tools = _read_tools(body)
    choice = body.tool_choice
    answer = AnswerWish(
        is_chat=True,
        tools=tools,
        strict=list_strict(body.tools),
        forced=_read_forced(choice),
        is_one_call=bool(choice and choice.disable_parallel_tool_use),
        splits_reasoning=True,
        shows_reasoning=body.thinking is None or body.thinking.type != "disabled",
    )
    request = build_request(shared, 1, body.max_tokens, body.max_tokens, None, answer=answer)
    return Reading(request, _read_conversation(body, tools))


def read_anthropic_prompt(data: bytes | bytearray) -> Reading:
    """Return the prompt of a body of POST /v1/messages/count_tokens. Raises BadRequestError."""
    body = decode_body(data, PromptBody)
    request = build_request(GenerationBody(model=body.model), 1, 1, 1, None)
    return Reading(request, _read_conversation(body, _read_tools(body)))


def _read_forced(choice: ToolChoice | None) -> str | None:
    if choice is None or choice.type in ("auto", "none"):
        return None
    if choice.type == "tool" and not choice.name:
        raise BadRequestError("`tool_choice` of type `tool` needs a `name`", param="tool_choice")
    return choice.name or ""


def _read_format(config: OutputConfig | None) -> ResponseFormat | None:
    wanted = None if config is None else config.format
    return None if wanted is None else ResponseFormat("json_schema", JsonSchema(wanted.schema))


def _read_conversation(body: PromptBody, tools: list[dict[str, Any]] | None) -> RenderChat:
    messages = (
        [] if body.system is None else [{"role": "system", "content": _join_text(body.system, "system")}]
    )
    for place, message in enumerate(body.messages):
        messages += _read_message(message, f"messages[{place}]")
    variables = {} if body.thinking is None else {"enable_thinking": body.thinking.type != "disabled"}
    return RenderChat(messages=read_messages(messages), tools=tools, variables=variables)


def _read_message(message: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """Return the messages that one of Anthropic's becomes: results of tools are messages of their own."""
    role, content = message.get("role"), message.get("content")
    if role not in _TEMPLATE_ROLES:
        raise BadRequestError(f"`{where}.role` is `user` or `assistant`", param=f"{where}.role")
    check_depth(content, where, MAX_SCHEMA_DEPTH)
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        raise BadRequestError(f"`{where}.content` is a text or a list of blocks", param=f"{where}.content")
    results: list[dict[str, Any]] = []
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in content:
        match block:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": "thinking", "thinking": str(text)}:
                thoughts.append(text)
            case {"type": "redacted_thinking"}:
                pass
            case {"type": "tool_use", "id": str(call_id), "name": str(name), "input": dict(arguments)}:
                function = {"name": name, "arguments": arguments}
                calls.append({"id": call_id, "type": "function", "function": function})
            case {"type": "tool_result", "tool_use_id": str(call_id)}:
                result = _join_text(block.get("content") or "", where)
                results.append({"role": "tool", "tool_call_id": call_id, "content": result})
            case _:
                kind = block.get("type") if isinstance(block, dict) else type(block).__name__
                raise BadRequestError(
                    f"a block of type {kind!r} is not supported: only text, thinking, tool_use, tool_result",
                    param=f"{where}.content",
                )
    own: dict[str, Any] = {"role": role, "content": "\n".join(texts)}
    own |= {"tool_calls": calls} if calls else {}
    own |= {"reasoning_content": "\n".join(thoughts)} if thoughts else {}
    return [*results, own] if texts or calls or thoughts or not results else results


def _join_text(content: str | list[Any], where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadRequestError(f"`{where}`: a text or a list of blocks is supported here", param=where)
    for block in content:
        if not isinstance(block, dict) or not isinstance(block.get("text"), str):
            raise BadRequestError(f"`{where}`: only blocks of type `text` are supported here", param=where)
    return "\n".join(block["text"] for block in content)


def _read_tools(body: PromptBody) -> list[dict[str, Any]] | None:
    """Return the tools as chat templates know them, or None. Raises BadRequestError naming what is wrong."""
    choice = body.tool_choice
    if choice is not None and choice.type in ("any", "tool") and not body.tools:
        raise BadRequestError("`tool_choice` needs `tools`", param="tool_choice")
    if not body.tools or (choice is not None and choice.type == "none"):
        return None
    check_depth(body.tools, "tools", MAX_SCHEMA_DEPTH)
    try:
        tools = msgspec.convert(body.tools, list[AnthropicTool])
    except msgspec.ValidationError as error:
        raise BadRequestError(f"{error}: only tools with `name` and `input_schema`", param="tools") from error
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description or "",
                "parameters": tool.input_schema or {"type": "object", "properties": {}},
            },
        }
        for tool in tools
    ]
