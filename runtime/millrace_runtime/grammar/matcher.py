"""The tokens that may follow in a text by a grammar, as a mask over a vocabulary."""

import re
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Protocol

import numpy as np
from llguidance import LLTokenizer
from numpy.typing import NDArray

from millrace_runtime.grammar.errors import GrammarError
from millrace_runtime.grammar.native_matcher import Lexers, NativeMatcher
from millrace_runtime.grammar.special_texts import SpecialTexts
from millrace_runtime.protocol.messages import Grammar

_WORD_BITS = 32
MOST_FORCED = 8
"""Forced tokens behind a drawn one: the other rows of a step wait while a row computes them. A name of a JSON
schema has two or three."""
_MAX_MESSAGE = 500
_NO_MORE = "<non-verbose/>"
"""The library writes this in place of details."""


class TokenizerText(Protocol):
    """The part of a tokenizer that a vocabulary is built from."""

    end_token_ids: tuple[int, ...]

    def to_json(self) -> str:
        """Return the tokenizer as tokenizer.json has it."""


_CHANGES_TEXT = re.compile(r'\{"type":"NFK?[CD]"\}')
"""Unicode's normal forms, as tokenizer.json has them."""
_BYTE_LEVEL = '"type":"ByteLevel","add_prefix_space":'
_KEEPS_TEXT = '{"type":"Sequence","normalizers":[]}'


def _keep_texts(tokenizer: str) -> str:
    """Return a tokenizer.json that changes no text: the tokens of a forced text must have its letters.

    A prompt is normalised before it is tokenised, but a schema's `const` has its own form of a letter. Tokens
    of another form would not fit the grammar. Nor would those of a text with a blank before it.
    """
    text = _CHANGES_TEXT.sub(_KEEPS_TEXT, tokenizer)
    return text.replace(f"{_BYTE_LEVEL}true", f"{_BYTE_LEVEL}false")


class Vocabulary:
    """A tokenizer's tokens as a trie of bytes."""

    def __init__(self, tokenizer: TokenizerText, size: int | None = None) -> None:
        """`size` is the number of the model's logits; None: the tokenizer's. Raises GrammarError."""
        ends = [token for token in tokenizer.end_token_ids if size is None or token < size]
        try:
            self.native = LLTokenizer(_keep_texts(tokenizer.to_json()), n_vocab=size, eos_token=ends or None)
        except Exception as error:  # the native library raises several
            raise GrammarError(f"this model's tokenizer can't be used with grammars: {error}") from error
        self.size: int = self.native.vocab_size
        self.end_bits = self.pack_bits(self.native.eos_tokens)
        special = filter(self.native.is_special_token, range(self.size))
        self.special_texts = SpecialTexts(self.native.decode_str([token]) for token in special)

    def tokenize(self, text: str) -> list[int]:
        """Return tokens of a text."""
        return list(self.native.tokenize_str(text))

    def pack_bits(self, tokens: Iterable[int]) -> NDArray[np.uint32]:
        """Return a mask of these tokens. It skips those outside the vocabulary."""
        bits = np.zeros(-(-self.size // _WORD_BITS), dtype=np.uint32)
        for token in tokens:
            if 0 <= token < self.size:
                bits[token // _WORD_BITS] |= np.uint32(1 << token % _WORD_BITS)
        return bits


class Matcher:
    """The state of one sequence in its grammar. It has no lock: one thread at a time may use it.

    A drawn token may leave the grammar one text for a while, such as a property's name behind its first
    quote. A matcher that forces then allows only the tokens of that text as the tokenizer has them. So these
    need no draw, and they are the same ones where they are drawn.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        native: NativeMatcher,
        stops: NDArray[np.uint32],
        *,
        is_forcing: bool = False,
    ) -> None:
        self._vocabulary = vocabulary
        self._native = native
        self._stops = stops
        self._ends = stops | vocabulary.end_bits
        self._is_forcing = is_forcing
        self._forced: list[int] = []
        """The tokens that follow, whatever is drawn."""

    @classmethod
    def build(cls, vocabulary: Vocabulary, grammar: str, *, is_of_client: bool = False) -> "Matcher":
        """Compile a text of `write_grammar`. Raises GrammarError for one that is wrong or that nothing fits.

        `is_of_client`: whether a client wrote its rules. This releases the GIL meanwhile.
        """
        native = NativeMatcher.begin(Lexers(vocabulary.native, grammar, is_of_client=is_of_client))
        matcher = cls(vocabulary, native, vocabulary.end_bits)
        matcher.fill(bytearray(vocabulary.end_bits.nbytes))  # some faults show with the first mask
        if matcher.fault is not None:
            raise GrammarError(matcher.fault)
        return matcher

    @classmethod
    def compile(cls, vocabulary: Vocabulary, grammar: Grammar) -> "Matcher":
        """Compile a grammar of a request, as `build` does."""
        return cls.build(vocabulary, grammar.text, is_of_client=grammar.is_of_client)

    def fork(self, stop_token_ids: Sequence[int], *, is_forcing: bool = False) -> "Matcher":
        """Return a matcher of its own in the same state. These tokens end its text."""
        stops = self._vocabulary.pack_bits(stop_token_ids)
        return Matcher(self._vocabulary, self._native.copy(), stops, is_forcing=is_forcing)

    def copy(self) -> "Matcher":
        """Return another one in the same state, to look ahead: one that has failed can't be rolled back."""
        ahead = Matcher(self._vocabulary, self._native.copy(), self._stops, is_forcing=self._is_forcing)
        ahead._forced = [*self._forced]
        return ahead

    @property
    def is_stopped(self) -> bool:
        """Whether nothing can follow: the text is whole, or the matcher has failed."""
        return self._native.is_stopped

    @property
    def fault(self) -> str | None:
        """Why the matcher has failed; None if it has not."""
        why = self._native.fault
        return None if why is None else why.strip().removesuffix(_NO_MORE).strip()[:_MAX_MESSAGE]

    def accepts(self, token: int) -> bool:
        """Whether a token may follow, as the mask has it: a stop token may where the text is whole."""
        if _has(self._stops, token):
            return self._native.is_accepting
        if _has(self._vocabulary.end_bits, token):
            return False
        return self._native.accepts(token)

    def consume(self, token: int) -> None:
        """Append a token to the text. A token that the mask does not allow is a fault."""
        self._native.consume(token)
        if self._forced[:1] == [token]:
            self._forced = self._forced[1:]
        elif self._is_forcing:
            self._forced = self._find_forced()

    def force(self, most: int) -> list[int]:
        """Append up to `most` of the tokens that are forced now, and MOST_FORCED at once. Return them.

        A token that the grammar refuses is a fault, as in `consume`. It is not returned, and ends them.
        """
        most = min(most, MOST_FORCED)
        forced, self._forced = self._forced[:most], self._forced[most:]
        for number, token in enumerate(forced):
            if not self._native.consume(token):
                self._forced = []
                return forced[:number]
        return forced

    def _find_forced(self) -> list[int]:
        """Return the tokens of the text that the grammar forces. A stop token is drawn."""
        return list(takewhile(lambda token: not _has(self._ends, token), self._native.find_forced()))

    def fill(self, mask: bytearray | memoryview) -> None:
        """Write which tokens may follow: bit i of the uint32 word w allows token 32 * w + i.

        The stop tokens are allowed exactly when the text is whole. After a fault nothing is allowed.
        """
        words = np.frombuffer(mask, dtype=np.uint32)
        if self._forced:
            word, bit = divmod(self._forced[0], _WORD_BITS)
            words[:] = 0
            words[word] = 1 << bit
            return
        self._native.fill(words.ctypes.data, words.nbytes)
        if self._native.fault is not None:
            words[:] = 0  # the library allows the end then
            return
        words &= ~self._vocabulary.end_bits
        if self._native.is_accepting:
            words |= self._stops


def _has(bits: NDArray[np.uint32], token: int) -> bool:
    word, bit = divmod(token, _WORD_BITS)
    return bool(bits[word] >> bit & 1)
