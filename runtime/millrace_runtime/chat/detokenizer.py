"""Turns tokens into text as they arrive, in whole characters.

All pieces together are the text of decoding all tokens at once: for byte-level vocabularies always, for
others if the tokens spell whole characters.
"""

import codecs
from collections.abc import Mapping, Sequence
from typing import Protocol

_MAX_HELD_TOKENS = 8
"""A character has at most four bytes, so after this many tokens the model really wrote U+FFFD."""
_CONTEXT_TOKENS = 16
"""Tokens without text that the window keeps at each end, because a decoder looks at neighbours."""
_REPLACEMENT = "\ufffd"
NONE_SHOWN: Mapping[int, str] = {}


class Vocabulary(Protocol):
    """The part of a tokenizer that a detokenizer needs."""

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token spells."""

    def token_text(self, token: int) -> str | None:
        """Return a byte-level token's text; None if the token is not whole characters."""

    def is_special(self, token: int) -> bool:
        """Whether a token never appears in text."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the tokens' text, without special tokens."""

    @property
    def drops_first_space(self) -> bool:
        """Whether a text begins without its first token's space."""


class Detokenizer(Protocol):
    """Turns one sequence's tokens into text."""

    def feed(self, tokens: Sequence[int]) -> str:
        """Return the new certain text, which may be empty."""

    def finish(self) -> str:
        """Return the rest at the sequence's end: U+FFFD for an incomplete character."""

    @property
    def drops_space(self) -> bool:
        """Whether the next token's leading space is no text."""


class ByteDetokenizer:
    """For byte-level vocabularies, where a text's bytes are its tokens' bytes: constant work for each token.

    Most tokens are whole characters, and the vocabulary keeps their text. With the work of
    `api/answer/choice.py` such a token takes 0.7 µs, and 1.2 µs through the decoder.
    """

    def __init__(self, vocabulary: Vocabulary, shown: Mapping[int, str] = NONE_SHOWN) -> None:
        """`shown` has the special tokens that are written, and their text."""
        self._vocabulary = vocabulary
        self._shown = shown
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._is_inside_character = False

    def feed(self, tokens: Sequence[int]) -> str:
        """Return the text of the characters that these tokens complete."""
        return "".join([self._feed_one(token) for token in tokens])

    def finish(self) -> str:
        """Return U+FFFD if the last character is incomplete."""
        return self._decoder.decode(b"", final=True)

    @property
    def drops_space(self) -> bool:
        """No: each byte is text."""
        return False

    def _feed_one(self, token: int) -> str:
        if self._shown and token in self._shown:
            return self._shown[token]
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

    It decodes a short window twice: the written tokens, and the written and the new tokens. The window has a
    maximum length, so the work for a token does not grow with the tokens before it, even without any text.

    The text differs from decoding all tokens at once only in runs of byte pieces with an incomplete
    character. There, decoding at once turns every byte into U+FFFD, also those of the whole characters before
    the fault. This detokenizer has already returned these characters.
    """

    def __init__(
        self, vocabulary: Vocabulary, shown: Mapping[int, str] = NONE_SHOWN, prompt: Sequence[int] = ()
    ) -> None:
        """`shown` has the special tokens that are written, and their text.

        The prompt's end is the first context, else the answer would lose its first space.
        """
        self._vocabulary = vocabulary
        self._shown = shown
        self._written = _whole_end([token for token in prompt if self._is_spelled(token)], vocabulary)
        self._held: list[int] = []

    def feed(self, tokens: Sequence[int]) -> str:
        """Return the new text, which is empty while it ends inside a character."""
        if self._shown:
            return "".join(map(self._feed_one, tokens))
        return self._feed_spelled(tokens)

    def finish(self) -> str:
        """Return the text of the tokens still held."""
        return self._release(self._new_text()) if self._held else ""

    @property
    def drops_space(self) -> bool:
        """Whether nothing stands before the next token that its decoder would look at."""
        return not self._written and not self._held and self._vocabulary.drops_first_space

    def _feed_one(self, token: int) -> str:
        shown = self._shown.get(token)
        return self._feed_spelled((token,)) if shown is None else self.finish() + shown

    def _feed_spelled(self, tokens: Sequence[int]) -> str:
        self._held += filter(self._is_spelled, tokens)
        if not self._held:
            return ""
        text = self._new_text()
        if text.endswith(_REPLACEMENT) and len(self._held) < _MAX_HELD_TOKENS:
            return ""
        return self._release(text)

    def _release(self, text: str) -> str:
        """Count the held tokens, whose text this is, as written."""
        # Tokens without text don't push the context out of the window.
        self._written = self._held if text else _cut_middle(self._written + self._held)
        self._held = []
        return text

    def _is_spelled(self, token: int) -> bool:
        """Whether the token has text: decoding skips special and unknown ones."""
        return not self._vocabulary.is_special(token) and bool(self._vocabulary.token_bytes(token))

    def _new_text(self) -> str:
        before = self._vocabulary.decode(self._written)
        return self._vocabulary.decode(self._written + self._held)[len(before) :]


def _whole_end(tokens: list[int], vocabulary: Vocabulary) -> list[int]:
    """Return the last tokens, without those of a character that is not whole."""
    end = tokens[-_CONTEXT_TOKENS:]
    while end and vocabulary.decode(end).endswith(_REPLACEMENT):
        end.pop()
    return end


def _cut_middle(tokens: list[int]) -> list[int]:
    """Return the tokens near either end."""
    if len(tokens) <= 2 * _CONTEXT_TOKENS:
        return tokens
    return tokens[:_CONTEXT_TOKENS] + tokens[-_CONTEXT_TOKENS:]
