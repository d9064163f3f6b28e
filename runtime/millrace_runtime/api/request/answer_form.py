"""Decides how the model writes an answer: its calls, its reasoning, and the grammar that binds them. Pure."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.api.request.intent import AnswerWish, GenerationRequest
from millrace_runtime.chat.parsers.choose import HARMONY, REASONING_MARKERS
from millrace_runtime.chat.parsers.parameter_types import ParameterTypes
from millrace_runtime.chat.tokenizer import Tokenizer
from millrace_runtime.grammar.any_object import ANY_OBJECT
from millrace_runtime.grammar.errors import GrammarError
from millrace_runtime.grammar.lark import LarkWriter
from millrace_runtime.grammar.parameters import CallableTool
from millrace_runtime.grammar.reasoning import BOUND, write_channels, write_final, write_thought
from millrace_runtime.grammar.source import GrammarKind, GrammarSource
from millrace_runtime.grammar.tools import write_either, write_forced, write_free
from millrace_runtime.grammar.well_formed import write_well_formed

_OPENING_TOKENS = 16
"""The marker and line breaks may be so many tokens."""
_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


class Reasoning(Enum):
    """Where the answer begins."""

    OPEN = auto()
    """In the reasoning: the prompt has opened it."""
    POSSIBLE = auto()
    """Before the reasoning, if there is one."""
    OVER = auto()
    """Behind the reasoning, or there is none."""


@dataclass(frozen=True)
class AnswerForm:
    """How the model writes one answer. A format is None if nothing of it is split off."""

    tool_format: str | None
    reasoning_format: str | None
    reasoning: Reasoning

    @property
    def formats(self) -> tuple[str | None, str | None]:
        """Those of calls and of reasoning."""
        return self.tool_format, self.reasoning_format

    @property
    def is_plain(self) -> bool:
        """Whether all of the answer is content."""
        return self.formats == (None, None)


def choose_form(
    wish: AnswerWish,
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    *,
    tool_format: str | None,
    reasoning_format: str | None,
) -> AnswerForm:
    """Return the form of a prompt's answer, by the model's formats.

    Raises BadRequestError for tools that the model does not know.
    """
    if wish.tools is not None and tool_format is None:
        raise BadRequestError(
            "this model's chat template knows no tools: leave `tools` out, or have the server started "
            "with --tool-parser",
            param="tools",
            code="unsupported_parameter",
        )
    # gpt-oss writes a chat without tools in its format, too.
    has_format = wish.tools is not None or (wish.is_chat and tool_format == HARMONY)
    splits = reasoning_format if wish.splits_reasoning else None
    return AnswerForm(tool_format if has_format else None, splits, _find_reasoning(splits, tokenizer, prompt))


def _find_reasoning(reasoning_format: str | None, tokenizer: Tokenizer, prompt: Sequence[int]) -> Reasoning:
    if reasoning_format is None:
        return Reasoning.OVER
    if reasoning_format == HARMONY:
        return Reasoning.POSSIBLE
    opening, closing = (marker.encode() for marker in REASONING_MARKERS[reasoning_format])
    end = b"".join(tokenizer.token_bytes(token) for token in prompt[-_OPENING_TOKENS:]).rstrip()
    if end.endswith(opening):
        return Reasoning.OPEN
    return Reasoning.OVER if end.endswith(closing) else Reasoning.POSSIBLE


def choose_grammar(
    request: GenerationRequest, form: AnswerForm, added_ids: Mapping[str, int]
) -> GrammarSource | None:
    """Return the grammar of the answer, behind the reasoning: the client's, that of calls, or of either.

    `added_ids` are the tokenizer's added tokens. Raises BadRequestError.
    """
    lark, name = LarkWriter(added_ids), form.reasoning_format
    try:
        source = _choose_answer(request, form, added_ids)
        if source is None or (source.field == "tools" and form.tool_format == HARMONY):
            return source
        answer = _write_answer(request, form, source, lark)
    except (GrammarError, RecursionError) as error:
        why = error if isinstance(error, GrammarError) else "they are nested too deep: make them flatter"
        raise BadRequestError(
            f"`tools` can't be used: {why}", param="tools", code="invalid_grammar"
        ) from error
    if HARMONY in {form.tool_format, name}:
        before = write_channels(lark, answer)
    elif name is not None and form.reasoning is not Reasoning.OVER:
        is_open = form.reasoning is Reasoning.OPEN
        opening, closing = REASONING_MARKERS[name]
        if source.is_ours and not lark.knows(closing):
            return None  # nothing would tell a text that ends in its reasoning from another one
        before = write_thought(lark, opening, closing, answer, is_open=is_open, may_end=source.is_ours)
    else:
        before = "" if answer == BOUND else lark.write(answer)
    return dataclasses.replace(source, before=before)


def _choose_answer(
    request: GenerationRequest, form: AnswerForm, added_ids: Mapping[str, int]
) -> GrammarSource | None:
    wish, tool_format = request.answer, form.tool_format
    if wish.tools is None or tool_format is None:
        return request.grammar
    if wish.forced is not None:
        tools = _list_forced(request, wish.forced)
        is_one_call = wish.is_one_call or wish.forced != ""
        lark = write_forced(tool_format, tools, LarkWriter(added_ids), is_one_call=is_one_call)
        return GrammarSource(GrammarKind.LARK, lark, "tool_choice")
    if request.grammar is not None:
        return request.grammar
    if wish.strict:
        lark = write_free(tool_format, _list_tools(wish), LarkWriter(added_ids))
        return GrammarSource(GrammarKind.LARK, lark, "tools")
    ours = None if request.ignores_end else write_well_formed(tool_format, LarkWriter(added_ids))
    return None if ours is None else GrammarSource(GrammarKind.LARK, ours, "tools", is_ours=True)


def _write_answer(
    request: GenerationRequest, form: AnswerForm, source: GrammarSource, lark: LarkWriter
) -> str:
    """Return the expression of the answer that `source` binds, or of calls instead where they may come."""
    wish = request.answer
    if source is not request.grammar or wish.tools is None or form.tool_format is None:
        is_text = source.field != "tool_choice" and HARMONY in form.formats
        return write_final(lark) if is_text else BOUND
    if form.tool_format == "llama3" and source.kind is not GrammarKind.SCHEMA:
        raise BadRequestError(
            f"this model's calls are JSON without a marker, so `tools` and `{source.field}` exclude each "
            "other: send a JSON schema, or `tool_choice: none`",
            param=source.field,
        )
    return write_either(form.tool_format, _list_tools(wish), lark, is_one_call=wish.is_one_call)


def _list_tools(wish: AnswerWish) -> list[CallableTool]:
    """Return the strict tools, and one for all others: these are called with any object."""
    tools, known = wish.tools or [], frozenset(wish.strict)
    strict = [_read_tool(tool) for tool in tools if _name_of(tool) in known]
    name, *others = [name for tool in tools if (name := _name_of(tool)) not in known] or [""]
    free = CallableTool(name, ANY_OBJECT, ParameterTypes(tools, name), others=others)
    return [*strict, free] if name else strict


def _list_forced(request: GenerationRequest, forced: str) -> list[CallableTool]:
    all_tools = request.answer.tools or []
    strict = frozenset(request.answer.strict)
    tools = [
        _read_tool(tool)._replace(is_strict=_name_of(tool) in strict)
        for tool in all_tools
        if forced in ("", _name_of(tool))
    ]
    if not tools:
        raise BadRequestError(f"`tool_choice` names `{forced}`, which is no tool", param="tool_choice")
    if request.grammar is not None:
        raise BadRequestError(
            f"`tool_choice` and `{request.grammar.field}` exclude each other: send one", param="tool_choice"
        )
    return tools


def _read_tool(tool: Mapping[str, Any]) -> CallableTool:
    """Return a tool as a grammar needs it."""
    name, parameters = _name_of(tool), tool["function"].get("parameters")
    schema = {**ANY_OBJECT, **parameters} if parameters else _NO_ARGUMENTS
    return CallableTool(name, schema, ParameterTypes([tool], name))


def _name_of(tool: Mapping[str, Any]) -> str:
    return str(tool["function"]["name"])
