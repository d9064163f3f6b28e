"""The formats of tool calls and of reasoning: their parsers, and which one a chat template teaches."""

import re
from collections.abc import Callable
from functools import partial
from itertools import chain

from millrace_runtime.chat.parsers.answer import AnswerParser, CallDelta, PlainParser
from millrace_runtime.chat.parsers.gemma import FUNCTION_GEMMA, GEMMA4, GemmaParser
from millrace_runtime.chat.parsers.glm import GlmParser
from millrace_runtime.chat.parsers.harmony import HarmonyParser
from millrace_runtime.chat.parsers.line_call import Glm4Parser
from millrace_runtime.chat.parsers.llama3 import Llama3Parser
from millrace_runtime.chat.parsers.marked_json import (
    GRANITE,
    HERMES,
    INTERNLM,
    NEMOTRON,
    PHI4_MINI,
    MarkedJsonParser,
)
from millrace_runtime.chat.parsers.mistral import MistralParser
from millrace_runtime.chat.parsers.named_call import DEEPSEEK_V3, DEEPSEEK_V31, KIMI_K2, NamedCallParser
from millrace_runtime.chat.parsers.parameter_types import Tools
from millrace_runtime.chat.parsers.pythonic import MINICPM3, PYTHONIC, MiniCpm3Parser, PythonicParser
from millrace_runtime.chat.parsers.qwen3_coder import QWEN3_CODER, SEED_OSS, Qwen3CoderParser
from millrace_runtime.chat.parsers.reasoning import ReasoningParser, list_whole_calls

HARMONY = "harmony"
"""The format of gpt-oss: of its calls and its reasoning at once."""
TOOL_FORMATS: dict[str, Callable[[Tools], AnswerParser]] = {
    "deepseek_v3": lambda _: NamedCallParser(DEEPSEEK_V3),
    "deepseek_v31": lambda _: NamedCallParser(DEEPSEEK_V31),
    "functiongemma": lambda _: GemmaParser(FUNCTION_GEMMA),
    "gemma4": lambda _: GemmaParser(GEMMA4),
    "glm4": Glm4Parser,
    "glm45": GlmParser,
    "granite": lambda _: MarkedJsonParser(GRANITE),
    HARMONY: lambda _: HarmonyParser(splits_reasoning=False),
    "hermes": lambda _: MarkedJsonParser(HERMES),
    "internlm": lambda _: MarkedJsonParser(INTERNLM),
    "kimi_k2": lambda _: NamedCallParser(KIMI_K2),
    "llama3": Llama3Parser,
    "minicpm3": MiniCpm3Parser,
    "mistral": lambda _: MistralParser(),
    "nemotron": lambda _: MarkedJsonParser(NEMOTRON),
    "phi4_mini": lambda _: MarkedJsonParser(PHI4_MINI),
    "phi4_mini_json": lambda _: MarkedJsonParser(PHI4_MINI),
    "pythonic": PythonicParser,
    "qwen3_coder": partial(Qwen3CoderParser, QWEN3_CODER),
    "seed_oss": partial(Qwen3CoderParser, SEED_OSS),
}
"""The formats of tool calls, by the names that `--tool-parser` takes."""
REASONING_MARKERS = {
    "gemma4": ("<|channel>thought", "<channel|>"),
    "mistral": ("[THINK]", "[/THINK]"),
    "seed_oss": ("<seed:think>", "</seed:think>"),
    "think_response": ("<think>", "</think>"),
    "think": ("<think>", "</think>"),
    "granite": ("Here is my thought process:", "Here is my response:"),
    "minicpm3": ("<|thought_start|>", "<|thought_end|>"),
}
"""The markers around the reasoning, by the names that `--reasoning-parser` takes."""
_OTHER_SPELLINGS = {"granite": ("Here's my thought process:", "Here's my response:")}
"""Other spellings of such markers, which models write too."""
_ANSWER_TAGS = {"think_response": ("<response>", "</response>")}
"""The tags around the answer, if there are any: Granite 3.3 and ERNIE's thinking models write them."""
_FIRST_TOKENS = {"gemma4": ("<|channel>",)}
"""The token that a marker of reasoning begins with, where the marker is more."""
_MARKERS = {
    "deepseek_v3": (*DEEPSEEK_V3.texts, "<｜tool▁sep｜>"),
    "deepseek_v31": (*DEEPSEEK_V31.texts, "<｜tool▁sep｜>"),
    "functiongemma": FUNCTION_GEMMA,
    "gemma4": GEMMA4,
    "glm4": ("<|assistant|>", "<|observation|>"),
    "glm45": ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    "granite": GRANITE.texts,
    HARMONY: (
        "<|start|>",
        "<|channel|>",
        "<|constrain|>",
        "<|message|>",
        "<|end|>",
        "<|call|>",
    ),
    "hermes": HERMES.texts,
    "internlm": ("<|action_start|>", "<|plugin|>", "<|action_end|>"),
    "kimi_k2": (*KIMI_K2.texts, "<|tool_call_argument_begin|>"),
    "llama3": ("<|python_tag|>",),
    "minicpm3": MINICPM3,
    "mistral": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    "nemotron": NEMOTRON.texts,
    "phi4_mini": PHI4_MINI.texts,
    "phi4_mini_json": PHI4_MINI.texts,
    "pythonic": PYTHONIC,
    "qwen3_coder": QWEN3_CODER.texts,
    "seed_oss": SEED_OSS.texts,
}
"""The texts that a parser looks for and that may be special tokens, which otherwise are no text."""
_KEY = r"\\?\"{}\\?\""
_SIGNS = {
    HARMONY: (r"<\|channel\|>", r"<\|message\|>"),
    "deepseek_v3": ("<｜tool▁call▁begin｜>", "```json"),
    "deepseek_v31": ("<｜tool▁call▁begin｜>",),
    "kimi_k2": (r"<\|tool_call_argument_begin\|>",),
    "functiongemma": ("<start_function_call>",),
    "gemma4": (r"<\|tool_call>",),
    "glm45": ("<tool_call>", "<arg_key>"),
    "seed_oss": ("<seed:tool_call>",),
    "granite": ("start_of_role", r"<\|tool_call\|>"),
    "phi4_mini_json": (r"functools\[",),
    "phi4_mini": (r"<\|tool\|>", r"<\|/tool\|>"),
    "qwen3_coder": ("<tool_call>", "<function="),
    "hermes": ("<tool_call>", _KEY.format("arguments")),
    "mistral": (re.escape("[TOOL_CALLS]"),),
    "llama3": ("ipython", _KEY.format("parameters")),
    "glm4": (r"\[gMASK\]", "metadata"),
    "internlm": (r"<\|action_start\|>", r"<\|plugin\|>"),
    "minicpm3": (r"<\|tool_call_start\|>", "```python"),
    "nemotron": ("<TOOLCALL>",),
    "pythonic": (r"\[\w+\(\w+=\w+",),
}
"""Patterns that the templates of a format match. The first format with all of its signs is
chosen, so a new one stands behind the others: a template keeps its format."""


def choose_tool_format(template: str) -> str | None:
    """Return the format that a chat template teaches, by its source; None if it is none of ours.

    The templates of DeepSeek's distilled models write calls and read no tools.
    """
    if not reads_tools(template):
        return None
    for name, signs in _SIGNS.items():
        if all(re.search(sign, template) for sign in signs):
            return name
    return None


def reads_tools(template: str) -> bool:
    """Whether a chat template knows a request's tools, by its source, or those of a message."""
    return re.search(r"(?<!['\".])\btools\b|\b(message|item)\[['\"]tools['\"]\]", template) is not None


def choose_reasoning_format(template: str) -> str | None:
    """Return how a model with this chat template, by its source, reasons; None if it does not."""
    if choose_tool_format(template) == HARMONY:
        return HARMONY
    for name, markers in REASONING_MARKERS.items():
        has_tags = all(tag in template for tag in _ANSWER_TAGS.get(name, ()))
        if has_tags and any(mark in template for mark in markers):
            return name
    return None


def list_markers(tool_format: str | None, reasoning_format: str | None) -> frozenset[str]:
    """Return the texts that `open_parser`'s parser looks for, as far as they may be special tokens."""
    calls = () if tool_format is None else _MARKERS[tool_format]
    if reasoning_format == HARMONY:
        return frozenset(_MARKERS[HARMONY])
    if reasoning_format is None:
        return frozenset(calls)
    markers = REASONING_MARKERS[reasoning_format]
    others = (known.get(reasoning_format, ()) for known in (_FIRST_TOKENS, _ANSWER_TAGS))
    return frozenset((*calls, *markers, *chain(*others)))


def open_parser(
    tool_format: str | None,
    reasoning_format: str | None,
    *,
    begins_in_reasoning: bool = False,
    tools: Tools | None = None,
) -> AnswerParser:
    """Return the parser of one answer.

    Without a format, calls are content, or reasoning is. `begins_in_reasoning`: the prompt has opened it.
    `tools` are the request's; their schemas type the arguments of formats that write text.
    """
    if reasoning_format == HARMONY:
        return HarmonyParser(splits_reasoning=True)
    open_calls: Callable[[], AnswerParser]
    open_calls = PlainParser if tool_format is None else partial(TOOL_FORMATS[tool_format], tools or ())
    if reasoning_format is None:
        return open_calls()

    def find_calls(text: str) -> list[CallDelta]:
        return list_whole_calls(open_calls(), text, {str(tool["function"]["name"]) for tool in tools or ()})

    markers = (REASONING_MARKERS[reasoning_format], _OTHER_SPELLINGS.get(reasoning_format))
    opening, closing = zip(*filter(None, markers), strict=True)
    return ReasoningParser(
        open_calls(),
        (opening, closing),
        begins_inside=begins_in_reasoning,
        tags=_ANSWER_TAGS.get(reasoning_format),
        find_calls=find_calls if tool_format and tools else None,
    )
