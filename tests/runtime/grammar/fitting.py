"""Whether a text fits a grammar."""

import itertools
import json
import random
from functools import cache
from string import ascii_lowercase
from typing import Any

from millrace_runtime.chat.tokenizer import Tokenizer
from millrace_runtime.grammar.grammar import write_grammar
from millrace_runtime.grammar.matcher import Matcher, Vocabulary
from millrace_runtime.grammar.source import GrammarKind
from millrace_runtime.replica.settings import DEMO_PATH

_SIGNS = ('":', '",', '": "', '", "', "},", "],", "}}", "]]", "[[", '["', '{"', ' {"')
_NUM_TOKENS = 128_000
_BYTE_LEVEL = {byte: byte + 256 for byte in range(33)} | {127: 289}
"""How a byte-level tokenizer writes bytes that are no visible characters."""


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


class ManyTokens:
    """A tokenizer of 128,000 byte-level tokens, as large as those of real models."""

    end_token_ids = (0,)

    def to_json(self) -> str:
        """Return it as tokenizer.json has it."""
        blanks = [line + pad * count for line in ("", "\n") for pad in " \t" for count in range(40)]
        letters = random.Random(5)
        words = (
            "".join(letters.choices(ascii_lowercase, k=letters.randint(1, 9))) for _ in itertools.count()
        )
        texts = dict.fromkeys(["<end>", *map(chr, range(1, 127)), *_SIGNS, "\r\n"])
        texts |= dict.fromkeys(filter(None, blanks))
        texts |= dict.fromkeys(blank + sign for blank in blanks if len(blank) < 8 for sign in ('"', "}"))
        while len(texts) < _NUM_TOKENS:
            word = next(words)
            texts |= dict.fromkeys((word, f" {word}", f'"{word}', f"_{word}"))
        known = {text.translate(_BYTE_LEVEL): number for number, text in enumerate(texts)}
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        parts = {"pre_tokenizer": level, "decoder": level, "added_tokens": []}
        return json.dumps({"version": "1.0", **parts, "model": {"type": "BPE", "vocab": known, "merges": []}})


@cache
def load_large_vocabulary() -> Vocabulary:
    """Return a vocabulary of as many tokens as those of real models, in which limits of the parser show."""
    return Vocabulary(ManyTokens())
