"""Reads the tools of Anthropic's dialect: which the model may call, and which its prompt has. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.api.request.messages import MAX_SCHEMA_DEPTH, check_depth
from millrace_runtime.api.request.openai_bodies import FunctionName

Described = dict[str, Any]
"""A tool as chat templates know it."""
_PUBLISHED = re.compile(r"\w+_\d{8}|tool_search_tool_\w+|mcp_toolset")
"""The types of the tools that Anthropic defines. Their models know the schemas, which no request has."""
_SEARCH = "tool_search_tool_"


class AnthropicTool(msgspec.Struct):
    """A tool of the client's."""

    name: FunctionName
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    """Whether the prompt omits it until a result refers to it."""


class ToolChoice(msgspec.Struct):
    """Whether tools must be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: bool | None = None


class Tools(NamedTuple):
    """A request's tools; None: none."""

    available: list[Described] | None = None
    """The tools that the model may call."""
    loaded: list[Described] | None = None
    """The tools among them that the prompt begins with."""
    deferred: Mapping[str, Described] = {}
    """The others by their names. A result that refers to one gets its description."""
    strict: tuple[str, ...] = ()
    """The names of those whose calls must fit their schema."""
    forced: str | None = None
    """The tool that must be called; empty: any of them; None: none must."""


def read_tools(tools: Sequence[dict[str, Any]] | None, choice: ToolChoice | None) -> Tools:
    """Return the tools without those that Anthropic defines. Raises BadRequestError naming what is wrong."""
    forced = None if choice is None else _read_forced(choice)
    if forced is not None and not tools:
        raise BadRequestError("`tool_choice` needs `tools`", param="tool_choice")
    if not tools or (choice is not None and choice.type == "none"):
        return Tools()
    check_depth(tools, "tools", MAX_SCHEMA_DEPTH)
    own = [_read_tool(tool, place) for place, tool in enumerate(tools) if not _is_published(tool)]
    _check_names(own)
    _check_forced(forced, [tool.name for tool in own])
    if not own:
        return Tools()
    described = [_describe(tool) for tool in own]
    deferred = {} if any(map(_is_search, tools)) else _list_deferred(own, described)
    return Tools(
        available=described,
        loaded=[
            text
            for tool, text in zip(own, described, strict=True)
            if tool.name not in deferred or tool.name == forced
        ],
        deferred=deferred,
        strict=tuple(tool.name for tool in own if tool.strict),
        forced=forced,
    )


def _list_deferred(own: Sequence[AnthropicTool], described: Sequence[Described]) -> dict[str, Described]:
    """Return the tools that wait for a result that refers to them, by their names.

    One tool at least must be loaded: if all are deferred, none of them is.
    """
    waiting = {tool.name: text for tool, text in zip(own, described, strict=True) if tool.defer_loading}
    return waiting if len(waiting) < len(own) else {}


def _read_forced(choice: ToolChoice) -> str | None:
    if choice.type == "tool" and not choice.name:
        raise BadRequestError("`tool_choice` of type `tool` needs a `name`", param="tool_choice")
    if choice.type == "any":
        return ""
    return choice.name if choice.type == "tool" else None


def _is_published(tool: Mapping[str, Any]) -> bool:
    return isinstance(kind := tool.get("type"), str) and _PUBLISHED.fullmatch(kind) is not None


def _is_search(tool: Mapping[str, Any]) -> bool:
    """Whether it is the search by which Anthropic's servers load deferred tools. This server has none."""
    return str(tool.get("type")).startswith(_SEARCH)


def _read_tool(tool: dict[str, Any], place: int) -> AnthropicTool:
    try:
        return msgspec.convert(tool, AnthropicTool)
    except msgspec.ValidationError as error:
        raise BadRequestError(
            f"`tools[{place}]`: {error}. A tool has a `name` and an `input_schema`", param="tools"
        ) from error


def _check_names(tools: Sequence[AnthropicTool]) -> None:
    known = set[str]()
    for tool in tools:
        if tool.name in known:
            raise BadRequestError(f"two `tools` are `{tool.name}`: rename or leave out one", param="tools")
        known.add(tool.name)


def _check_forced(forced: str | None, names: Sequence[str]) -> None:
    """Raise BadRequestError where none of the tools is the one that must be called."""
    if forced is None or (forced in names if forced else names):
        return
    wanted = f"names `{forced}`" if forced else "asks for a call"
    raise BadRequestError(
        f"`tool_choice` {wanted}, and the tools with an `input_schema` are {list(names)}: send one for each "
        "tool, as this server has none of Anthropic's",
        param="tool_choice",
    )


def _describe(tool: AnthropicTool) -> Described:
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description or "",
            "parameters": tool.input_schema or {"type": "object", "properties": {}},
        },
    }
