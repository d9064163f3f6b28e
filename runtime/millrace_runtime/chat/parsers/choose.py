"""Chooses the parser of an answer by the model's chat template."""

import re
from collections.abc import Callable

from millrace_runtime.chat.parsers.answer import AnswerParser, PlainParser
from millrace_runtime.chat.parsers.hermes import HermesParser
from millrace_runtime.chat.parsers.llama3 import Llama3Parser
from millrace_runtime.chat.parsers.mistral import MistralParser
from millrace_runtime.chat.parsers.parameter_types import Tools
from millrace_runtime.chat.parsers.qwen3_coder import Qwen3CoderParser
from millrace_runtime.chat.parsers.reasoning import ReasoningParser

TOOL_FORMATS: dict[str, Callable[[Tools], AnswerParser]] = {
    "hermes": lambda _: HermesParser(),
    "llama3": lambda _: Llama3Parser(),
    "mistral": lambda _: MistralParser(),
    "qwen3_coder": Qwen3CoderParser,
}
"""The formats of tool calls, by the names that `--tool-parser` takes."""
_MARKERS = {
    "hermes": ("<tool_call>", "</tool_call>"),
    "llama3": ("<|python_tag|>",),
    "mistral": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    "qwen3_coder": ("<tool_call>", "</tool_call>"),
}
"""What a parser looks for, and what may be a special token of the model, which is no text otherwise."""
_KEY = r"\\?\"{}\\?\""
_SIGNS = {
    "qwen3_coder": ("<tool_call>", "<function="),
    "hermes": ("<tool_call>", _KEY.format("arguments")),
    "mistral": (re.escape("[TOOL_CALLS]"),),
    "llama3": ("ipython", _KEY.format("parameters")),
}
"""What a format's templates have, each sign a pattern. The first format with all of its signs is chosen."""


def choose_tool_format(template: str) -> str | None:
    """Return the format that a chat template teaches, by its source; None if it knows no tools."""
    for name, signs in _SIGNS.items():
        if all(re.search(sign, template) for sign in signs):
            return name
    return None


def has_reasoning(template: str) -> bool:
    """Whether a chat template, by its source, is of a model that reasons in `<think>…</think>`."""
    return "<think>" in template or "</think>" in template


def list_markers(tool_format: str | None, *, splits_reasoning: bool) -> frozenset[str]:
    """Return the texts that `open_parser`'s parser looks for, as far as they may be special tokens."""
    markers = () if tool_format is None else _MARKERS[tool_format]
    return frozenset((*markers, *(("<think>", "</think>") if splits_reasoning else ())))


def open_parser(
    tool_format: str | None, *, splits_reasoning: bool, begins_in_reasoning: bool, tools: Tools | None = None
) -> AnswerParser:
    """Return the parser of one answer.

    Without a format, calls are content. `begins_in_reasoning`: the prompt ends with an opened `<think>`.
    `tools` are the request's; their schemas type the arguments of formats that write text.
    """
    behind = PlainParser() if tool_format is None else TOOL_FORMATS[tool_format](tools or ())
    if not splits_reasoning:
        return behind
    return ReasoningParser(behind, begins_inside=begins_in_reasoning)
