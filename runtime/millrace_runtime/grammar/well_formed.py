"""Writes the grammar of any text in which the JSON of calls is well-formed. Pure.

Nobody asked for it, so it binds nothing else: names, keys and their order are the model's, and so is what
stands behind a marker and is no JSON. What a parser reads without it, it reads with it.
"""

from collections.abc import Mapping

from millrace_runtime.grammar.any_object import write_any_json
from millrace_runtime.grammar.lark import LarkWriter

_MARKERS: Mapping[str, tuple[str, ...]] = {
    "deepseek_v31": ("<｜tool▁sep｜>",),
    "granite": ("<|tool_call|>",),
    "hermes": ("<tool_call>",),
    "internlm": ("<|plugin|>",),
    "kimi_k2": ("<|tool_call_argument_begin|>",),
    "mistral": ("[ARGS]", "[TOOL_CALLS]"),
    "nemotron": ("<TOOLCALL>",),
    "phi4_mini": ("<|tool_call|>",),
}
"""Behind which token a format has JSON; of several the first that the tokenizer has. The other formats have
none, or no token before it."""
_SPACE = r"/[ \n]{1,8}/?"
_OTHER = r"/[ \n]{0,8}[^ \n{\[](.|\n)*/"
"""Text that does not begin as an object or a list."""


def write_well_formed(tool_format: str, lark: LarkWriter) -> str | None:
    """Return the grammar; None for a format that has no token before its JSON."""
    marker = next(filter(lark.knows, _MARKERS.get(tool_format, ())), None)
    if marker is None:
        return None
    free, mark = lark.without(marker), lark.mark(marker)
    # A token may hold the end of the JSON and more, which only an expression of text can take.
    json = f"{_SPACE} {write_any_json(lark)} ANY"
    tokens = lark.tokens(without=(marker,))
    behind = f"({json} | {_OTHER} | {tokens})" if tokens else f"({json} | {_OTHER})"
    return lark.write(f"({free} ({mark})+ {behind})* {free} (({mark})+ {_SPACE})?")
