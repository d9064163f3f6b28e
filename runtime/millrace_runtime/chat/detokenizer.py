"""Tokens to text as they arrive: never half a character, and in sum what decoding at once would give.

Byte-level vocabularies keep that for any tokens, others for tokens that spell whole characters.
"""

import codecs
from collections.abc import Sequence
from typing import Protocol

_MAX_HELD_TOKENS = 8
"""A character has at most four bytes, so after this many tokens U+FFFD is what the model wrote."""
_CONTEXT_TOKENS = 16
"""Silent tokens remembered at either end: a decoder looks at a text's beginning and at its neighbour."""
_REPLACEMENT = "\ufffd"


class Vocabulary(Protocol):
    """What a detokenizer needs of a tokenizer."""

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token spells."""

    def token_text(self, token: int) -> str | None:
        """Return the text of a byte-level token that is whole characters; None for one that is not."""

    def is_special(self, token: int) -> bool:
        """Tell whether a token never appears in text."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the tokens' text, without special tokens."""


class Detokenizer(Protocol):
    """One sequence's way from tokens to text."""

    def feed(self, tokens: Sequence[int]) -> str:
        """Take tokens and return the text that is now certain; perhaps none."""

    def finish(self) -> str:
        """Return what is left at the end: U+FFFD for a character that never became whole."""


class ByteDetokenizer:
    """For byte-level vocabularies, where a text's bytes are its tokens' bytes: constant work a token.

    Most tokens are whole characters, whose text the vocabulary remembers: with what `api/choice.py` does, a
    token takes 0.7 us so, and 1.2 us through the decoder.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._is_inside_character = False

    def feed(self, tokens: Sequence[int]) -> str:
        """Take tokens and return the text of their whole characters."""
        return "".join([self._feed_one(token) for token in tokens])

    def finish(self) -> str:
        """Return U+FFFD if the last character is incomplete."""
        return self._decoder.decode(b"", final=True)

    def _feed_one(self, token: int) -> str:
        if not self._is_inside_character:
            text = self._vocabulary.token_text(token)
            if text is not None:
                return text
        elif self._vocabulary.is_special(token):
            return ""
        text = self._decoder.decode(self._vocabulary.token_bytes(token))
        self._is_inside_character = bool(self._decoder.getstate()[0])
        return text


class WindowDetokenizer:
    """For vocabularies whose decoder looks at neighbours (SentencePiece's leading space).

    It decodes a short window twice: the tokens already written, and those plus the new ones. The window is
    bounded, so the work for a token does not grow with the tokens before it, even where none gave text.

    In sum it is what decoding at once would give where runs of byte pieces are whole characters. In a run
    that is not, decoding at once turns every byte into U+FFFD, also the whole characters before the fault;
    we have passed those on by then. The text of other pieces is the same for any tokens.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._written: list[int] = []
        self._held: list[int] = []

    def feed(self, tokens: Sequence[int]) -> str:
        """Take tokens and return the new text, or none while it ends inside a character."""
        self._held += filter(self._is_spelled, tokens)
        if not self._held:
            return ""
        text = self._new_text()
        if text.endswith(_REPLACEMENT) and len(self._held) < _MAX_HELD_TOKENS:
            return ""
        # Tokens without text don't push the context out of the window.
        self._written = self._held if text else _cut_middle(self._written + self._held)
        self._held = []
        return text

    def finish(self) -> str:
        """Return the text of the tokens still held."""
        text = self._new_text() if self._held else ""
        self._held = []
        return text

    def _is_spelled(self, token: int) -> bool:
        """Whether decoding knows the token at all: it skips special and unknown ones, and so do we."""
        return not self._vocabulary.is_special(token) and bool(self._vocabulary.token_bytes(token))

    def _new_text(self) -> str:
        before = self._vocabulary.decode(self._written)
        return self._vocabulary.decode(self._written + self._held)[len(before) :]


def _cut_middle(tokens: list[int]) -> list[int]:
    """Return the tokens without those that are far from both ends."""
    if len(tokens) <= 2 * _CONTEXT_TOKENS:
        return tokens
    return tokens[:_CONTEXT_TOKENS] + tokens[-_CONTEXT_TOKENS:]
