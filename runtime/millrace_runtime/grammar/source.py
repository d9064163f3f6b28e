"""A grammar as a client writes it. This module loads no library: the HTTP process reads with it."""

import enum
from dataclasses import dataclass

MAX_BYTES = 128 << 10
"""Of a source. A Lark grammar of 110 KB was seen to compile for a second, with the text worker busy all the
time."""


class GrammarKind(enum.StrEnum):
    """How a client writes a grammar."""

    SCHEMA = "schema"
    """A JSON schema, as JSON."""
    REGEX = "regex"
    """A regular expression of Rust's `regex`, for the whole answer."""
    CHOICE = "choice"
    """A JSON list of texts, of which the answer is one."""
    GRAMMAR = "grammar"
    """A grammar in llguidance's Lark, or in GBNF, the EBNF of llama.cpp."""
    LARK = "lark"
    """A grammar in llguidance's Lark alone: ours, of calls."""


@dataclass(frozen=True)
class GrammarSource:
    """A client's grammar, not looked at yet."""

    kind: GrammarKind
    text: str
    field: str
    """The field of the request that has it."""
    is_ours: bool = False
    """Whether no client asked for it, and none wrote any of it."""
    before: str = ""
    """The grammar, in Lark, of a reasoning with the answer behind it, which it calls `@answer`."""
