"""Writes the grammar of gpt-oss's answers: messages of channels, of which the last may be a call. Pure.

`<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…`. The prompt has opened
the first message by `<|start|>assistant`. `<|return|>` and `<|call|>`, which end the last, are stop tokens.
"""

from millrace_runtime.grammar.lark import LarkWriter, write_choice, write_regex
from millrace_runtime.grammar.parameters import Tools, write_arguments


def write_messages(lark: LarkWriter) -> str:
    """Return the expression of messages of reasoning, and of text before a call."""
    channel = _write_begin(lark, '("analysis" | "commentary")')
    next_message = f'{lark.mark("<|start|>")} "assistant"'
    return lark.add("message", f"{channel} {lark.until('<|end|>')} {next_message}") + "*"


def write_final(lark: LarkWriter) -> str:
    """Return the expression of the beginning of the message that the client reads."""
    return _write_begin(lark, '"final"')


def write_call(lark: LarkWriter, tools: Tools) -> str:
    """Return the expression of a call of one of these tools."""
    json_type = f'{lark.mark("<|constrain|>")} "json" {lark.mark("<|message|>")}'
    calls = [f"{write_regex(f'{tool.pattern} ')} {json_type} {write_arguments(lark, tool)}" for tool in tools]
    return f'{lark.mark("<|channel|>")} "commentary to=functions." {write_choice(calls)}'


def write_answer(lark: LarkWriter, tools: Tools) -> str:
    """Return the expression of messages whose last one is a call, or for the client."""
    final = f"{write_final(lark)} {lark.without('<|end|>')}"
    return f"{write_messages(lark)} ({write_call(lark, tools)} | {final})"


def _write_begin(lark: LarkWriter, channel: str) -> str:
    return f"{lark.mark('<|channel|>')} {channel} {lark.mark('<|message|>')}"
