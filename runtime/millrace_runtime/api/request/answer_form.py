"""Decides how the model writes an answer: its calls, its reasoning, and the grammar that binds them. Pure."""

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.api.request.generation_request import AnswerWish, GenerationRequest
from millrace_runtime.chat.parsers.parameter_types import ParameterTypes
from millrace_runtime.chat.parsers.registry import (
    HARMONY,
    REASONING_MARKERS,
    TOOL_FORMATS,
    choose_tool_format,
    reads_tools,
)
from millrace_runtime.chat.tokenizer import Tokenizer
from millrace_runtime.grammar.any_json import ANY_OBJECT, write_well_formed
from millrace_runtime.grammar.errors import GrammarError
from millrace_runtime.grammar.formats.line_calls import LINE_FORMATS
from millrace_runtime.grammar.lark import LarkWriter
from millrace_runtime.grammar.parameters import CallableTool
from millrace_runtime.grammar.reasoning import BOUND, write_channels, write_final, write_thought
from millrace_runtime.grammar.source import GrammarKind, GrammarSource
from millrace_runtime.grammar.tools import check_tools, write_either, write_forced, write_free

_OPENING_TOKENS = 16
"""The most tokens of the marker and the line breaks after it."""
_NO_BUDGET = b"<seed:cot_budget_reflect>"
"""Seed-OSS's template writes this behind the marker if the model shall not reason. The model closes both."""
_MOST_SCHEMAS = 256
"""The most tools whose calls must fit schemas of their own. The grammar of 512 tools with one parameter each
takes more than the 8 MiB of `grammar/proof.py` in three of seven formats, that of 256 in none (by hand)."""
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
        """The format of calls, and that of reasoning."""
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
        raise BadRequestError(_explain_missing_format(tokenizer), param="tools", code="unsupported_parameter")
    # gpt-oss writes a chat without tools in its format, too.
    has_format = wish.tools is not None or (wish.is_chat and tool_format == HARMONY)
    splits = reasoning_format if wish.splits_reasoning else None
    return AnswerForm(tool_format if has_format else None, splits, _find_reasoning(splits, tokenizer, prompt))


def _explain_missing_format(tokenizer: Tokenizer) -> str:
    templates = "".join(tokenizer.config.chat_templates.values())
    if not reads_tools(templates):
        return "this model's chat template knows no tools: leave `tools` out"
    if choose_tool_format(templates) is not None:
        return "this server was started with --tool-parser none: leave `tools` out"
    return (
        "this model's chat template writes tools, but how the model calls them is no format of this server: "
        f"leave `tools` out, or have the server started with --tool-parser, one of {', '.join(TOOL_FORMATS)}"
    )


def _find_reasoning(reasoning_format: str | None, tokenizer: Tokenizer, prompt: Sequence[int]) -> Reasoning:
    if reasoning_format is None:
        return Reasoning.OVER
    if reasoning_format == HARMONY:
        return Reasoning.POSSIBLE
    opening, closing = (marker.encode() for marker in REASONING_MARKERS[reasoning_format])
    end = b"".join(tokenizer.token_bytes(token) for token in prompt[-_OPENING_TOKENS:]).rstrip()
    end = end.removesuffix(_NO_BUDGET)
    if end.endswith(opening):
        return Reasoning.OPEN
    return Reasoning.OVER if end.endswith(closing) else Reasoning.POSSIBLE


def choose_grammar(
    request: GenerationRequest, form: AnswerForm, added_ids: Mapping[str, int]
) -> GrammarSource | None:
    """Return the grammar of the answer behind its reasoning: the client's, one of calls, or one of either.

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
            return None  # a text that ends in its reasoning would look like another one
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
        lark = _write_forced(request, wish.forced, tool_format, added_ids)
        return GrammarSource(GrammarKind.LARK, lark, "tool_choice")
    if request.grammar is not None:
        return request.grammar
    if wish.strict:
        lark = write_free(tool_format, _list_tools(wish.tools, wish.strict), LarkWriter(added_ids))
        return GrammarSource(GrammarKind.LARK, lark, "tools")
    ours = None if request.ignores_end else write_well_formed(tool_format, LarkWriter(added_ids))
    return None if ours is None else GrammarSource(GrammarKind.LARK, ours, "tools", is_ours=True)


def _write_answer(
    request: GenerationRequest, form: AnswerForm, source: GrammarSource, lark: LarkWriter
) -> str:
    """Return the expression of the answer that `source` binds, with calls beside it if they may come."""
    wish = request.answer
    if source is not request.grammar or wish.tools is None or form.tool_format is None:
        is_text = source.field != "tool_choice" and HARMONY in form.formats
        return write_final(lark) if is_text else BOUND
    if form.tool_format in LINE_FORMATS and source.kind is not GrammarKind.SCHEMA:
        raise BadRequestError(
            f"this model writes calls without a marker, so `tools` and `{source.field}` exclude each "
            "other: send a JSON schema, or `tool_choice: none`",
            param=source.field,
        )
    tools = _list_tools(wish.tools, wish.strict)
    return write_either(form.tool_format, tools, lark, is_one_call=wish.is_one_call)


def _write_forced(
    request: GenerationRequest, forced: str, tool_format: str, added_ids: Mapping[str, int]
) -> str:
    """Return the grammar of a forced call. Where it is too large, only strict tools keep their schemas.

    Raises GrammarError.
    """
    tools, strict = _list_forced(request, forced), request.answer.strict
    is_one_call = request.answer.is_one_call or forced != ""

    def write(callable_tools: Sequence[CallableTool]) -> str:
        return write_forced(tool_format, callable_tools, LarkWriter(added_ids), is_one_call=is_one_call)

    known = [_read_tool(tool, strict) for tool in tools]
    check_tools(tool_format, known)
    if len(tools) <= _MOST_SCHEMAS:
        with suppress(GrammarError):
            return write(known)
    return write(_list_tools(tools, strict))


def _list_tools(tools: Sequence[Mapping[str, Any]], strict: Sequence[str]) -> list[CallableTool]:
    """Return the strict tools, and one for all others: these are called with any object.

    Raises GrammarError for too many strict ones.
    """
    if len(strict) > _MOST_SCHEMAS:
        raise GrammarError(f"{len(strict)} of them are strict, and the limit is {_MOST_SCHEMAS}: send fewer")
    known = frozenset(strict)
    bound = [_read_tool(tool, strict) for tool in tools if _name_of(tool) in known]
    name, *others = [name for tool in tools if (name := _name_of(tool)) not in known] or [""]
    free = CallableTool(name, ANY_OBJECT, ParameterTypes(tools, name), others=others)
    return [*bound, free] if name else bound


def _list_forced(request: GenerationRequest, forced: str) -> list[dict[str, Any]]:
    """Return the tools of which one must be called."""
    tools = [tool for tool in request.answer.tools or [] if forced in ("", _name_of(tool))]
    if not tools:
        raise BadRequestError(f"`tool_choice` names `{forced}`, which is no tool", param="tool_choice")
    if request.grammar is not None:
        raise BadRequestError(
            f"`tool_choice` and `{request.grammar.field}` exclude each other: send one", param="tool_choice"
        )
    return tools


def _read_tool(tool: Mapping[str, Any], strict: Sequence[str]) -> CallableTool:
    """Return a tool as a grammar needs it. `strict` names those that the client calls so."""
    name, parameters = _name_of(tool), tool["function"].get("parameters")
    schema = {**ANY_OBJECT, **parameters} if parameters else _NO_ARGUMENTS
    return CallableTool(name, schema, ParameterTypes([tool], name), is_strict=name in strict)


def _name_of(tool: Mapping[str, Any]) -> str:
    return str(tool["function"]["name"])
