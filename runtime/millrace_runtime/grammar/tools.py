"""Writes the grammar of answers with tool calls, in the format of the model. Pure."""

import msgspec

from millrace_runtime.grammar import harmony
from millrace_runtime.grammar.call_formats import (
    END_OBJECT,
    CallFormat,
    choose_call_format,
    match_name,
    write_object,
)
from millrace_runtime.grammar.documents import write_json
from millrace_runtime.grammar.json_schema.places import move_references
from millrace_runtime.grammar.lark import SPACE, LarkWriter, write_choice, write_regex, write_text
from millrace_runtime.grammar.parameters import CallableTool, Tools, write_arguments
from millrace_runtime.grammar.reasoning import BOUND, write_final

_LLAMA_TAG = "<|python_tag|>"
_LLAMA_LINE = r"(\n|<\|python_tag\|>\s*)"
"""Behind which an object may be a call in the midst of a text."""
_LLAMA_END = r"/[ \n;]{1,8}/?"
_LLAMA_SPACE = r"/[ \n]*;?[ \n]*/"


def write_forced(tool_format: str, tools: Tools, lark: LarkWriter, *, is_one_call: bool) -> str:
    """Return the grammar of an answer that is a call of one of these tools, or several calls."""
    match tool_format:
        case "llama3":
            return lark.write(_write_llama_calls(lark, tools, is_one_call=True))
        case "harmony":
            return lark.write(harmony.write_call(lark, tools))
    return lark.write(_write_marked_calls(tool_format, tools, lark, is_one_call=is_one_call))


def write_either(tool_format: str, tools: Tools, lark: LarkWriter, *, is_one_call: bool) -> str:
    """Return the expression of calls as `write_forced` has them, or of the answer that the client binds."""
    tools = _call_strict(tools)
    match tool_format:
        case "llama3":
            calls = write_choice([_write_llama_json(tool) for tool in tools])
            return f"({lark.mark(_LLAMA_TAG)}? {calls} | {BOUND})"
        case "harmony":
            return f"({harmony.write_call(lark, tools)} | {write_final(lark)})"
    return f"({_write_marked_calls(tool_format, tools, lark, is_one_call=is_one_call)} | {BOUND})"


def write_free(tool_format: str, tools: Tools, lark: LarkWriter) -> str:
    """Return the grammar of any text in which what begins as a call is a call of one of these tools."""
    tools = _call_strict(tools)
    match tool_format:
        case "llama3":
            return lark.write(_write_llama_answer(lark, tools))
        case "harmony":
            return lark.write(harmony.write_answer(lark, tools))
    known = choose_call_format(tool_format, lark)
    opening, others = known.opening, known.other_openings
    section = f"{lark.until(opening, others)} {_write_section(known, lark, tools, is_one_call=False)}"
    return lark.write(f"({section})* {lark.without(opening, others)}")


def _call_strict(tools: Tools) -> Tools:
    """Return the tools of an answer that may call them: those that are not strict have no schema there."""
    return [tool._replace(is_strict=True) for tool in tools]


def _write_marked_calls(tool_format: str, tools: Tools, lark: LarkWriter, *, is_one_call: bool) -> str:
    known = choose_call_format(tool_format, lark)
    section = f"{lark.mark(known.opening)} {_write_section(known, lark, tools, is_one_call=is_one_call)}"
    if known.section is not None or is_one_call:
        return section
    return f"{section} ({write_text(known.between)} {section})*"


def _write_section(known: CallFormat, lark: LarkWriter, tools: Tools, *, is_one_call: bool) -> str:
    """Return the expression of what stands behind an opening."""
    call = lark.add("call", write_choice([known.write_call(lark, tool) for tool in tools]))
    if known.section is None:
        return call
    before, behind = known.section
    more = "" if is_one_call else f"({write_text(known.between)} {call})*"
    last = f"({write_text(known.between)})?" if known.between else ""
    return f"{write_text(before)} {call} {more} {last} {lark.mark(behind)} {lark.mark(known.end)}"


def _write_llama_calls(lark: LarkWriter, tools: Tools, *, is_one_call: bool) -> str:
    call = lark.add("call", write_choice([write_object(lark, tool, "parameters") for tool in tools]))
    return call if is_one_call else f"{call} ({_LLAMA_SPACE} {call})* {_LLAMA_END}"


def _write_llama_json(tool: CallableTool) -> str:
    """Return the expression of a call in the words of JSON alone.

    The compiler reads the longest word, so the pattern of a call's beginning would hide the same beginning
    of the client's own JSON.
    """
    inner = "#/properties/parameters"
    parameters = move_references(tool.schema, inner)
    keys = {"name": {"enum": tool.names}, "parameters": parameters}
    call = {"type": "object", "properties": keys, "required": list(keys), "additionalProperties": False}
    return write_json(call, msgspec.structs.replace(tool.origin, inner=inner))


def _write_llama_answer(lark: LarkWriter, tools: Tools) -> str:
    """Return the expression of calls, with or without a text before them, or of a text.

    No marker says that an object is a call, so the name of a tool does, where an object begins the answer or
    a line of it.
    """
    tokens = lark.tokens()
    parts = lark.add("part", f"ANY {tokens}") + "*" if tokens else ""
    begun = write_choice([_write_llama_begun(lark, tool) for tool in tools])
    more = f"({_LLAMA_SPACE} {_write_llama_calls(lark, tools, is_one_call=False)} | {_LLAMA_END})"
    return f"{parts} ({begun} {more} | ANY)"


def _write_llama_begun(lark: LarkWriter, tool: CallableTool) -> str:
    """Return the expression of a text and the first call in it.

    The first name of a tool ends the text, so what a parser takes for a call can't hide in it. A pattern of
    texts without names would do the same, but has more states than the compiler allows.
    """
    begun = lark.add("line[lazy]", write_regex(rf"(\s*|(.|\n)*{_LLAMA_LINE}){match_name(tool)}"))
    head = write_regex(rf'({SPACE})?,({SPACE})?"parameters"({SPACE})?:({SPACE})?')
    return f"{begun} {head} {write_arguments(lark, tool)} {END_OBJECT}"
