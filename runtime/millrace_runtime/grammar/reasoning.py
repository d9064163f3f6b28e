"""Writes the grammar of the reasoning before an answer that a grammar binds. Pure."""

from millrace_runtime.grammar import harmony
from millrace_runtime.grammar.lark import LarkWriter

ANSWER = "answer"
"""What the bound answer is called in the grammar of the text before it."""
_BREAKS = "/\\n{0,4}/"


def write_thought(lark: LarkWriter, opening: str, closing: str, *, is_open: bool) -> str:
    """Return the grammar of reasoning between two markers, with the answer behind it.

    `is_open`: the prompt has opened it. Else the answer may come without.
    """
    rest = f"{lark.until(closing)} {_BREAKS}"
    return lark.write(f"{rest} @{ANSWER}" if is_open else f"({lark.mark(opening)} {rest})? @{ANSWER}")


def write_channels(lark: LarkWriter, *, is_call: bool) -> str:
    """Return the grammar of gpt-oss's messages, with the answer behind them.

    `is_call`: the answer is a message itself; else it is the text of one.
    """
    begin = "" if is_call else harmony.write_final(lark)
    return lark.write(f"{harmony.write_messages(lark)} {begin} @{ANSWER}")
