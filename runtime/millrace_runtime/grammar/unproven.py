"""Grammars of ours that need no proof: nothing in them is a client's. This module loads no library."""

import json

from millrace_runtime.grammar.reasoning import ANSWER
from millrace_runtime.protocol.messages import Grammar

_NUM_BYTES = 256_000
"""Of memory, once it is compiled: more than the proofs of such grammars measured, 163 KB."""


def write_unproven(answer: str, before: str) -> Grammar:
    """Return a grammar in Lark as the engine takes it; the arguments are as GrammarSource has them."""
    parts = [{"lark_grammar": before}, {"lark_grammar": answer, "name": ANSWER}]
    text = json.dumps({"grammars": parts if before else [{"lark_grammar": answer}]})
    return Grammar(text, _NUM_BYTES, is_optimistic=True, is_optional=True)
