"""Whether a text fits a grammar."""

import json
from functools import cache
from typing import Any

from millrace_runtime.chat.tokenizer import Tokenizer
from millrace_runtime.grammar.grammar import write_grammar
from millrace_runtime.grammar.matcher import Matcher, Vocabulary
from millrace_runtime.grammar.source import GrammarKind
from millrace_runtime.replica.settings import DEMO_PATH


class Fitting:
    """A grammar over a tokenizer's tokens."""

    def __init__(self, vocabulary: Vocabulary, tokenizer: Tokenizer, grammar: str) -> None:
        self._tokenizer = tokenizer
        self._num_bytes = vocabulary.end_bits.nbytes
        self._root = Matcher.build(vocabulary, grammar)

    def fits(self, text: str) -> bool:
        """Whether the masks allow each of the text's tokens, and then the end."""
        [end] = self._tokenizer.end_token_ids
        [tokens] = self._tokenizer.encode_batch([text], add_special_tokens=False)
        matcher, mask = self._root.fork([end]), bytearray(self._num_bytes)
        for token in [*tokens, end]:
            matcher.fill(mask)
            is_allowed = bool(mask[token // 8] >> token % 8 & 1)
            assert matcher.accepts(token) == is_allowed, "the mask says otherwise"
            if not is_allowed:
                return False
            if token != end:
                matcher.consume(token)
        return True


@cache
def load_tokenizer() -> Tokenizer:
    """Return the shipped model's tokenizer."""
    return Tokenizer.load(DEMO_PATH)


@cache
def load_vocabulary() -> Vocabulary:
    """Return that tokenizer's vocabulary."""
    return Vocabulary(load_tokenizer(), 4096)


def open_grammar(kind: GrammarKind, source: str) -> Fitting:
    """Return what a client asks for as a grammar."""
    return Fitting(load_vocabulary(), load_tokenizer(), write_grammar(kind, source))


def open_schema(schema: dict[str, Any]) -> Fitting:
    """Return a client's schema as a grammar."""
    return open_grammar(GrammarKind.SCHEMA, json.dumps(schema))
