"""The tokens that may follow in a text by a grammar, as a mask over a vocabulary."""

import re
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Protocol

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray

from millrace_runtime.grammar.errors import GrammarError
from millrace_runtime.protocol.messages import Grammar

_WORD_BITS = 32
_MAX_ROW = 3000
"""Items in a row of Earley's parser. 600 properties that may be left out have 2,400 behind the brace, and 140
more if their values are of 20 kinds of objects."""
_MAX_CLIENTS_ROW = 300
"""Where a client wrote the rules. The ambiguous `s: s s | s s s | /[a-z]/` took 79 ms a token after 100
letters with 2,000 items, and fails at 11 ms with 300."""
_MAX_LEXER_STATES = 20_000
"""They take 2 KB each, so these are at most 40 MB a sequence."""
_MAX_STEP_ITEMS = 120_000
"""Of all rows of a mask. Behind a blank each longer blank has a row, up to the longest before a sign in one
token: 3 rows with the shipped model's vocabulary, 23 with one of 129,000 tokens, and 32 with one of 152,000,
by hand. So `trial.py` tries schemas with the model's own vocabulary."""
_MAX_CLIENTS_STEP_ITEMS = 10_000
"""Where a client wrote the rules. What a mask of a schema costs is tried in its proof."""
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
        self._special_openings = {self.native.decode_str([token])[:2] for token in special} - {""}

    def tokenize(self, text: str) -> list[int]:
        """Return tokens of a text."""
        return list(self.native.tokenize_str(text))

    def has_special(self, text: str) -> bool:
        """Whether one of the tokens of a text is a special token, which no text of a grammar has."""
        may_be = any(map(text.__contains__, self._special_openings))  # to tokenise 1,400 letters takes 0.5 ms
        return may_be and any(map(self.native.is_special_token, self.tokenize(text)))

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
        native: LLMatcher,
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

        Without precomputed lexemes the median of 250 schemas in the shape of public ones compiles in 2.0 ms
        of CPU time instead of 2.4, and no mask takes longer.
        """
        limits = LLParserLimits(
            max_items_in_row=_MAX_CLIENTS_ROW if is_of_client else _MAX_ROW,
            max_lexer_states=_MAX_LEXER_STATES,
            step_max_items=_MAX_CLIENTS_STEP_ITEMS if is_of_client else _MAX_STEP_ITEMS,
            precompute_large_lexemes=False,
            verbose_errors=False,
        )
        native = LLMatcher(vocabulary.native, grammar, log_level=0, limits=limits)
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
        return Matcher(self._vocabulary, self._native.deep_copy(), stops, is_forcing=is_forcing)

    def copy(self) -> "Matcher":
        """Return another one in the same state, to look ahead: one that has failed can't be rolled back.

        It took 0.03 ms for a text of 1,300 tokens, measured once by hand.
        """
        ahead = Matcher(self._vocabulary, self._native.deep_copy(), self._stops, is_forcing=self._is_forcing)
        ahead._forced = [*self._forced]
        return ahead

    @property
    def is_stopped(self) -> bool:
        """Whether nothing can follow: the text is whole, or the matcher has failed."""
        return bool(self._native.is_stopped())

    @property
    def fault(self) -> str | None:
        """Why the matcher has failed; None if it has not."""
        if not self._native.is_error():
            return None
        return self._native.get_error().strip().removesuffix(_NO_MORE).strip()[:_MAX_MESSAGE]

    def accepts(self, token: int) -> bool:
        """Whether a token may follow, as the mask has it: a stop token may where the text is whole."""
        if _has(self._stops, token):
            return bool(self._native.is_accepting())
        if _has(self._vocabulary.end_bits, token):
            return False
        return bool(self._native.validate_tokens([token]) == 1)

    def consume(self, token: int) -> None:
        """Append a token to the text. A token that the mask does not allow is a fault."""
        self._native.consume_token(token)
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
            if not self._native.consume_token(token):
                self._forced = []
                return forced[:number]
        return forced

    def _find_forced(self) -> list[int]:
        """Return the tokens of the text that the grammar forces, as the tokenizer has them.

        The library leaves out a last one that may be part of a longer token. A stop token is drawn.
        """
        return list(takewhile(lambda token: not _has(self._ends, token), self._native.compute_ff_tokens()))

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
        self._native.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if self._native.is_error():
            words[:] = 0  # the library allows the end then
            return
        words &= ~self._vocabulary.end_bits
        if self._native.is_accepting():
            words |= self._stops


def _has(bits: NDArray[np.uint32], token: int) -> bool:
    word, bit = divmod(token, _WORD_BITS)
    return bool(bits[word] >> bit & 1)
