"""Writes the grammar of the reasoning before an answer that a grammar binds. Pure: it loads no library."""

import json

from millrace_runtime.grammar.formats import harmony
from millrace_runtime.grammar.lark import LarkWriter
from millrace_runtime.protocol.messages import Grammar

ANSWER = "answer"
"""The name of the bound answer in the grammar of the text before it."""
BOUND = f"@{ANSWER}"
"""The expression of that answer alone."""
_BREAKS = "/\\n{0,4}/"


def write_thought(
    lark: LarkWriter,
    opening: str,
    closing: str,
    answer: str = BOUND,
    *,
    is_open: bool,
    may_end: bool = False,
) -> str:
    """Return the grammar of reasoning between two markers, with an answer behind it, an expression.

    `is_open`: the prompt has opened it. Else the answer may come without. With `may_end` the text may end in
    the reasoning, where its end is a token.
    """
    rest = f"{lark.until(closing)} {_BREAKS} {answer}"
    if may_end and lark.knows(closing):
        rest = f"({rest} | {lark.without(closing)})"
    return lark.write(rest if is_open else f"({lark.mark(opening)} {rest} | {answer})")


def write_channels(lark: LarkWriter, answer: str) -> str:
    """Return the grammar of gpt-oss's messages, with an answer behind them: the expression of a message."""
    return lark.write(f"{harmony.write_messages(lark)} {answer}")


def write_final(lark: LarkWriter) -> str:
    """Return the expression of gpt-oss's message whose text is the bound answer."""
    return f"{harmony.write_final(lark)} {BOUND}"


_NUM_BYTES = 256_000
"""Of memory, once it is compiled: more than the proofs of such grammars measured, 163 KB."""


def write_unproven(answer: str, before: str) -> Grammar:
    """Return a Lark grammar of ours as the engine takes it. It needs no proof: nothing in it is a client's.

    The arguments are those of `GrammarSource`: `before` is the reasoning's grammar, or empty.
    """
    parts = [{"lark_grammar": before}, {"lark_grammar": answer, "name": ANSWER}]
    text = json.dumps({"grammars": parts if before else [{"lark_grammar": answer}]})
    return Grammar(text, _NUM_BYTES, is_optimistic=True, is_optional=True)
