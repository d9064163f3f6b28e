"""How the formats that begin a call with a marker write it. Pure."""

from collections.abc import Callable
from typing import NamedTuple

from millrace_runtime.grammar.formats import gemma, pythonic
from millrace_runtime.grammar.lark import SPACE, LarkWriter, write_regex, write_text
from millrace_runtime.grammar.parameters import (
    CallableTool,
    ParameterForm,
    write_arguments,
    write_parameters,
)

_SPACE = f"({SPACE})?"
_BREAK = r"[ \n]{0,2}"
"""One line break in Qwen's own template; others leave it out."""
_OPENING = rf'\{{{_SPACE}"name"{_SPACE}:{_SPACE}"'
END_OBJECT = write_regex(rf"{_SPACE}\}}")


class CallFormat(NamedTuple):
    """One format. Its texts may be markers."""

    opening: str
    """The marker that begins a call, or a section of several."""
    write_call: Callable[[LarkWriter, CallableTool], str]
    """Returns the expression of what stands behind the opening: a call of this tool."""
    between: str = ""
    """The text between two calls."""
    section: tuple[str, str] | None = None
    """The texts before the first call and behind the last one; None where each has an opening."""
    end: str = ""
    """The marker behind such a section's last text."""
    other_openings: tuple[str, ...] = ()
    """More texts that a parser takes for an opening. Free text has none: a call could hide behind it."""


def write_object(lark: LarkWriter, tool: CallableTool, arguments: str, before: str = "") -> str:
    """Return the expression of a call as JSON, whose arguments have this name.

    The tool's schema stays a document of its own, where its references hold. `before` is the pattern of what
    stands before it. What is the same in all calls is a word of its own: with a name in it, the lexer would
    have each blank that may stand in it once for each tool, which is beyond its limit with 256 tools.
    """
    opening = lark.add("OPENING", write_regex(f"{before}{_OPENING}"))
    middle = lark.add("MIDDLE", write_regex(f'"{_SPACE},{_SPACE}"{arguments}"{_SPACE}:{_SPACE}'))
    return f"{opening} {write_regex(tool.pattern)} {middle} {write_arguments(lark, tool)} {END_OBJECT}"


def match_name(tool: CallableTool) -> str:
    """Return the regular expression of such an object's beginning, up to its name."""
    return f'{_OPENING}{tool.pattern}"'


def _write_hermes(lark: LarkWriter, tool: CallableTool) -> str:
    call = write_object(lark, tool, "arguments", before=_BREAK)
    return f"{call} {write_regex(_BREAK)} {lark.mark('</tool_call>')}"


def _write_element(lark: LarkWriter, tool: CallableTool) -> str:
    return write_object(lark, tool, "arguments")


def _write_internlm(lark: LarkWriter, tool: CallableTool) -> str:
    """Its documents have `parameters`, and the templates of others `arguments`."""
    call = write_object(lark, tool, "(parameters|arguments)", before=_BREAK)
    return f"{lark.mark('<|plugin|>')} {call} {write_regex(_BREAK)} {lark.mark('<|action_end|>')}"


def _write_named(lark: LarkWriter, tool: CallableTool) -> str:
    call_id = f"({lark.mark('[CALL_ID]')} /[0-9A-Za-z]{{9}}/)?" if lark.knows("[CALL_ID]") else ""
    return f"{write_regex(tool.pattern)} {call_id} {lark.mark('[ARGS]')} {write_arguments(lark, tool)}"


def _write_qwen3_coder(lark: LarkWriter, tool: CallableTool) -> str:
    return _write_function(lark, tool, "\n", "</tool_call>")


def _write_seed_oss(lark: LarkWriter, tool: CallableTool) -> str:
    return _write_function(lark, tool, "", "</seed:tool_call>")


def _write_function(lark: LarkWriter, tool: CallableTool, line: str, closing: str) -> str:
    """Return the expression of a function; `line` stands around each value."""
    value = lark.add("VALUE", r"ANY & ~(ANY /<\/parameter>|\n<parameter=|\n<\/function>/ ANY)")
    end = write_text(f"{line}</parameter>\n")
    form = ParameterForm(
        begin=lambda key: write_text(f"<parameter={key}>{line}"),
        begin_any=rf'"<parameter=" /[^<>\n]+/ {write_text(f">{line}")}',
        text=lark.add("value[lazy]", f"{value} {end}"),
        end=end,
    )
    begin = write_regex(rf"\n<function={tool.pattern}>\n")
    return f'{begin} {write_parameters(lark, tool, form)} "</function>\\n" {lark.mark(closing)}'


def _write_glm(lark: LarkWriter, tool: CallableTool) -> str:
    key_begin, key_end = lark.mark("<arg_key>"), lark.mark("</arg_key>")
    value = f'{key_end} "\\n" {lark.mark("<arg_value>")}'
    form = ParameterForm(
        begin=lambda key: f"{key_begin} {write_text(key)} {value}",
        begin_any=f"{key_begin} /[^<>\\n]+/ {value}",
        text=f'{lark.until("</arg_value>")} "\\n"',
        end=f'{lark.mark("</arg_value>")} "\\n"',
    )
    begin = write_regex(rf"{tool.pattern}\n")
    return f"{begin} {write_parameters(lark, tool, form)} {lark.mark('</tool_call>')}"


def _write_deepseek_v3(lark: LarkWriter, tool: CallableTool) -> str:
    begin, end = lark.mark("<｜tool▁call▁begin｜>"), lark.mark("<｜tool▁call▁end｜>")
    fenced = write_regex(rf"{tool.pattern}\n```json\n")
    name = f'"function" {lark.mark("<｜tool▁sep｜>")} {fenced}'
    return f'{begin} {name} {write_arguments(lark, tool)} "\\n```" {end}'


def _write_deepseek_v31(lark: LarkWriter, tool: CallableTool) -> str:
    begin, end = lark.mark("<｜tool▁call▁begin｜>"), lark.mark("<｜tool▁call▁end｜>")
    name = f"{write_regex(tool.pattern)} {lark.mark('<｜tool▁sep｜>')}"
    return f"{begin} {name} {write_arguments(lark, tool)} {end}"


def _write_kimi_k2(lark: LarkWriter, tool: CallableTool) -> str:
    begin, end = lark.mark("<|tool_call_begin|>"), lark.mark("<|tool_call_end|>")
    name = write_regex(rf"functions\.{tool.pattern}:[0-9]{{1,4}}")
    return f"{begin} {name} {lark.mark('<|tool_call_argument_begin|>')} {write_arguments(lark, tool)} {end}"


def _write_functiongemma(lark: LarkWriter, tool: CallableTool) -> str:
    return f"{gemma.write_call(lark, tool, '<escape>')} {lark.mark('<end_function_call>')}"


def _write_gemma4(lark: LarkWriter, tool: CallableTool) -> str:
    return f"{gemma.write_call(lark, tool, _GEMMA_QUOTE)} {lark.mark('<tool_call|>')}"


_GEMMA_QUOTE = '<|"|>'
_CALLS, _SECTION = "<｜tool▁calls▁begin｜>", ("", "<｜tool▁calls▁end｜>")
_MISTRAL_LIST = CallFormat("[TOOL_CALLS]", _write_element, ", ", (" [", "]"))
_FORMATS = {
    "deepseek_v3": CallFormat(_CALLS, _write_deepseek_v3, "\n", _SECTION),
    "deepseek_v31": CallFormat(_CALLS, _write_deepseek_v31, "", _SECTION),
    "functiongemma": CallFormat("<start_function_call>", _write_functiongemma),
    "gemma4": CallFormat("<|tool_call>", _write_gemma4),
    "glm45": CallFormat("<tool_call>", _write_glm, "\n"),
    "granite": CallFormat("<|tool_call|>", _write_element, ", ", ("[", "]"), other_openings=("<tool_call>",)),
    "hermes": CallFormat("<tool_call>", _write_hermes, "\n"),
    "internlm": CallFormat("<|action_start|>", _write_internlm),
    "kimi_k2": CallFormat(
        "<|tool_calls_section_begin|>", _write_kimi_k2, "", ("", "<|tool_calls_section_end|>")
    ),
    "minicpm3": CallFormat(
        "<|tool_call_start|>",
        pythonic.write_call,
        "\n",
        ("\n```python\n", "\n```\n"),
        end="<|tool_call_end|>",
    ),
    "mistral": CallFormat("[TOOL_CALLS]", _write_named),
    "nemotron": CallFormat("<TOOLCALL>", _write_element, ", ", ("[", "]"), end="</TOOLCALL>"),
    "phi4_mini": CallFormat(
        "<|tool_call|>",
        _write_element,
        ", ",
        ("[", "]"),
        end="<|/tool_call|>",
        other_openings=("functools[",),
    ),
    "phi4_mini_json": CallFormat(
        "functools[", _write_element, ", ", ("", "]"), other_openings=("<|tool_call|>",)
    ),
    "qwen3_coder": CallFormat("<tool_call>", _write_qwen3_coder, "\n"),
    "seed_oss": CallFormat("<seed:tool_call>", _write_seed_oss, "\n"),
}


def choose_call_format(tool_format: str, lark: LarkWriter) -> CallFormat:
    """Return how a format writes calls.

    Only the newer of Mistral's vocabularies, which write a call's name before its arguments, know `[ARGS]`.
    """
    if tool_format == "mistral" and not lark.knows("[ARGS]"):
        return _MISTRAL_LIST
    return _FORMATS[tool_format]
