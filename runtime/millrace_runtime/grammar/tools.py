"""Writes the grammar of answers with tool calls, in the format of the model. Pure."""

from millrace_runtime.grammar.formats import harmony, pythonic
from millrace_runtime.grammar.formats.line_calls import LINE_FORMATS
from millrace_runtime.grammar.formats.marked_calls import CallFormat, choose_call_format
from millrace_runtime.grammar.lark import LarkWriter, write_choice, write_text
from millrace_runtime.grammar.parameters import Tools
from millrace_runtime.grammar.reasoning import BOUND, write_final

_KEYWORD_FORMATS = ("minicpm3", "pythonic")


def check_tools(tool_format: str, tools: Tools) -> None:
    """Raise GrammarError for a tool whose arguments the format can't name."""
    for tool in tools if tool_format in _KEYWORD_FORMATS else ():
        pythonic.check_keys(tool)


def write_forced(tool_format: str, tools: Tools, lark: LarkWriter, *, is_one_call: bool) -> str:
    """Return the grammar of an answer that is a call of one of these tools, or several calls."""
    if (line := LINE_FORMATS.get(tool_format)) is not None:
        return lark.write(line.write_forced(lark, tools, is_one_call=is_one_call))
    if tool_format == "harmony":
        return lark.write(harmony.write_call(lark, tools))
    return lark.write(_write_marked_calls(tool_format, tools, lark, is_one_call=is_one_call))


def write_either(tool_format: str, tools: Tools, lark: LarkWriter, *, is_one_call: bool) -> str:
    """Return the expression of calls as `write_forced` has them, or of the answer that the client binds."""
    tools = _call_strict(tools)
    if (line := LINE_FORMATS.get(tool_format)) is not None:
        return line.write_either(lark, tools, is_one_call=is_one_call)
    if tool_format == "harmony":
        return f"({harmony.write_call(lark, tools)} | {write_final(lark)})"
    return f"({_write_marked_calls(tool_format, tools, lark, is_one_call=is_one_call)} | {BOUND})"


def write_free(tool_format: str, tools: Tools, lark: LarkWriter) -> str:
    """Return the grammar of any text in which what begins as a call is a call of one of these tools."""
    tools = _call_strict(tools)
    if (line := LINE_FORMATS.get(tool_format)) is not None:
        return lark.write(line.write_answer(lark, tools))
    if tool_format == "harmony":
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
