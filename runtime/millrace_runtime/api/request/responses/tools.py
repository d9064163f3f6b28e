"""The tools of a body of POST /v1/responses, as the model knows them and as the client does. Pure.

A model knows functions alone. It gets a `custom` tool as a function with one text, and the tools of a
`namespace` as functions whose names begin with that of the namespace. The client gets calls by its own names.
Tools of any other type are left out: OpenAI's servers run them, or only OpenAI's models know them.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.api.request.decoding import refuse_invalid
from millrace_runtime.api.request.messages import MAX_SCHEMA_DEPTH, check_depth
from millrace_runtime.api.request.openai_bodies import MAX_TOOLS, FunctionName

Tool = TypeVar("Tool", bound=msgspec.Struct)
TEXT = "input"
"""The parameter of a `custom` tool's function."""
_ANY = "*"
"""Stands for a namespace that is left out. No namespace has this name."""
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
_FREE_TEXT: Mapping[str, Any] = {
    "type": "object",
    "properties": {TEXT: {"type": "string"}},
    "required": [TEXT],
    "additionalProperties": False,
}


class FunctionTool(msgspec.Struct, tag_field="type", tag="function", omit_defaults=True):
    """A function that the model may call."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class TextFormat(msgspec.Struct, omit_defaults=True):
    """The form of a custom tool's text. The model sees the grammar, and nothing enforces it."""

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None


class CustomTool(msgspec.Struct, tag_field="type", tag="custom", omit_defaults=True):
    """A tool that takes a text."""

    name: FunctionName
    description: str | None = None
    format: TextFormat | None = None


class NamespaceTool(msgspec.Struct, tag_field="type", tag="namespace"):
    """Tools whose names are only known together with that of the group."""

    name: FunctionName
    tools: Annotated[list[dict[str, Any]], Meta(max_length=MAX_TOOLS)]
    description: str | None = None


class Wish(NamedTuple):
    """A part of `tool_choice`: a tool, or all tools of a namespace."""

    kind: str
    name: str
    namespace: str | None


class Choice(NamedTuple):
    """The tools that a model may call; None: none."""

    tools: list[dict[str, Any]] | None
    forced: str | None = None
    """As in AnswerWish."""


def read_tools(tools: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the tools that are not left out. Raises BadRequestError naming what is wrong.

    Each is what chat templates know and two more fields: `declared`, the client's tool, and `namespace`, the
    name and the description of its group.
    """
    check_depth(tools, "tools", MAX_SCHEMA_DEPTH)
    found: dict[str, dict[str, Any]] = {}
    for place, tool in enumerate(tools):
        for function in _read_tool(tool, f"tools[{place}]", None):
            name = function["function"]["name"]
            if _identify(found.setdefault(name, function)) != _identify(function):
                raise BadRequestError(f"two `tools` are `{name}` for the model: rename one", param="tools")
    if len(found) > MAX_TOOLS:
        raise BadRequestError(
            f"`tools` has {len(found)} functions, and the limit is {MAX_TOOLS}: send fewer",
            param="tools",
        )
    return list(found.values())


def join_name(namespace: Any, name: str) -> str:
    """Return the name that the model knows a client's tool by."""
    if not isinstance(namespace, str) or not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def find_tool(tools: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any] | None:
    """Return the tool that a model calls; None if it knows no such tool.

    Some models leave out the namespace. Such a name counts if only one tool has it.
    """
    found = [tool for tool in tools if tool["function"]["name"] == name]
    found = found or [tool for tool in tools if tool.get("declared", {}).get("name") == name]
    return found[0] if len(found) == 1 else None


def write_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools as their client wrote them."""
    written: list[dict[str, Any]] = []
    groups: dict[str, list[dict[str, Any]]] = {}
    for tool in tools:
        if (group := tool.get("namespace")) is None:
            written.append(tool["declared"])
        elif (members := groups.get(group["name"])) is not None:
            members.append(tool["declared"])
        else:
            groups[group["name"]] = [tool["declared"]]
            written.append({"type": "namespace", **group, "tools": groups[group["name"]]})
    return written


def list_called(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools with what a call needs: the model's function, the client's type and name."""
    return [
        {
            "type": "function",
            "function": tool["function"],
            "declared": {name: tool["declared"][name] for name in ("type", "name")},
        }
        | ({"namespace": tool["namespace"]["name"]} if "namespace" in tool else {})
        for tool in tools
    ]


def choose_tools(tools: list[dict[str, Any]], choice: Any) -> Choice:
    """Return those of the tools that may be called, and which must be. Raises BadRequestError."""
    match choice:
        case None | "auto":
            return Choice(tools or None)
        case "none":
            return Choice(None)
        case "required":
            if not tools:
                raise BadRequestError(
                    "`tool_choice` needs `tools` of type `function`, `custom` or `namespace`: this server "
                    "leaves out all others",
                    param="tool_choice",
                )
            return Choice(tools, "")
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": list(allowed)} if (
            len(allowed) <= MAX_TOOLS
        ):
            wishes = {_write_wish(one) for one in allowed}
            return choose_tools([tool for tool in tools if not wishes.isdisjoint(_list_wishes(tool))], mode)
        case {"type": "function" | "custom", "name": str(name)}:
            return Choice(tools, _find_forced(tools, choice, name))
        case {"type": str(kind)} if kind not in ("allowed_tools", "function", "custom"):
            raise BadRequestError(
                f"`tool_choice` wants a tool of type {kind[:64]!r}, and this server leaves these out: name a "
                "function or a custom tool, or send `auto`",
                param="tool_choice",
                code="unsupported_parameter",
            )
    raise BadRequestError(
        "`tool_choice` must be `auto`, `none` or `required`, or name a function, a custom tool or"
        " `allowed_tools`",
        param="tool_choice",
    )


def _read_tool(tool: Any, where: str, group: NamespaceTool | None) -> Iterator[dict[str, Any]]:
    """Yield the functions of a tool; nothing of one that is left out."""
    match tool:
        case {"type": "function"}:
            function = _convert(tool, FunctionTool, where)
            declared = {"parameters": None, "strict": False} | msgspec.to_builtins(function)
            description = function.description or ""
            yield _write_function(declared, description, function.parameters or _NO_PARAMETERS, group)
        case {"type": "custom"}:
            custom = _convert(tool, CustomTool, where)
            yield _write_function(msgspec.to_builtins(custom), _describe(custom), _FREE_TEXT, group)
        case {"type": "namespace"} if group is None:
            group = _convert(tool, NamespaceTool, where)
            for place, inner in enumerate(group.tools):
                yield from _read_tool(inner, f"{where}.tools[{place}]", group)
        case {"type": str()}:
            return
        case _:
            raise BadRequestError(
                f"`{where}` must be an object with a `type` such as `function`", param=f"{where}.type"
            )


def _write_function(
    declared: dict[str, Any], description: str, parameters: Mapping[str, Any], group: NamespaceTool | None
) -> dict[str, Any]:
    name = join_name(group and group.name, declared["name"])
    function = {"name": name, "description": description, "parameters": parameters}
    tool = {"type": "function", "function": function, "declared": declared}
    if group is None:
        return tool
    return tool | {"namespace": {"name": group.name, "description": group.description or ""}}


def _describe(tool: CustomTool) -> str:
    """Return the description for the model of a tool that takes a text."""
    texts = [tool.description or ""]
    if tool.format is not None and tool.format.definition:
        texts.append(f"`{TEXT}` fits this {tool.format.syntax or 'lark'} grammar:\n{tool.format.definition}")
    return "\n\n".join(filter(None, texts))


def _convert(tool: Any, kind: type[Tool], where: str) -> Tool:
    try:
        return msgspec.convert([tool], list[kind])[0]  # type: ignore[valid-type]
    except msgspec.ValidationError as error:
        raise refuse_invalid(str(error).replace("`$[0]", f"`$.{where}")) from error


def _identify(tool: Mapping[str, Any]) -> tuple[str, str | None]:
    return tool["declared"]["name"], tool.get("namespace", {}).get("name")


def _write_wish(part: Any) -> Wish | None:
    """Return a part of `tool_choice`, which may leave out the namespace; None for one that means no tool."""
    match part:
        case {"type": str(kind), "name": str(name)}:
            group = part.get("namespace", _ANY)
            return Wish(kind, name, group) if group is None or isinstance(group, str) else None
    return None


def _list_wishes(tool: Mapping[str, Any]) -> Iterator[Wish]:
    """Yield the parts of `tool_choice` that mean this tool."""
    name, group = _identify(tool)
    if group is not None:
        yield Wish("namespace", group, _ANY)
    for known, place in itertools.product((name, tool["function"]["name"]), (group, _ANY)):
        yield Wish(tool["declared"]["type"], known, place)


def _find_forced(tools: Sequence[Mapping[str, Any]], choice: Any, name: str) -> str:
    """Return the model's name of the only tool that must be called."""
    wish = _write_wish(choice)
    found: list[str] = [tool["function"]["name"] for tool in tools if wish in set(_list_wishes(tool))]
    if name in found:
        return name
    if len(found) != 1:
        names = [tool["function"]["name"] for tool in tools]
        raise BadRequestError(f"`tool_choice` names `{name}`, and the tools are {names}", param="tool_choice")
    return found[0]
