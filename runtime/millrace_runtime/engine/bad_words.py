"""Words that may not come. Where a text ends with all tokens of a word but the last, that last one is banned.

Pure. Words of one token are biases instead.
"""

from collections.abc import Sequence

from millrace_runtime.engine.matcher import Matcher

Words = Sequence[Sequence[int]]
"""Each word's tokens, two at least."""


class BadWordMatcher:
    """Bans the words of a request in one sequence, beside the grammar that may bind it too."""

    def __init__(self, words: Words, grammar: Matcher | None = None) -> None:
        self._grammar = grammar
        self._last_tokens: dict[tuple[int, ...], list[int]] = {}
        """The last tokens of the words, by the tokens before them."""
        for *front, last in words:
            self._last_tokens.setdefault(tuple(front), []).append(last)
        self._lengths = sorted({len(front) for front in self._last_tokens})
        self._end: list[int] = []
        """The text's last tokens, as many as the longest front has."""

    @property
    def is_stopped(self) -> bool:
        """Whether nothing can follow, as the grammar says."""
        return self._grammar is not None and self._grammar.is_stopped

    @property
    def fault(self) -> str | None:
        """Why the grammar has failed; None if it has not."""
        return None if self._grammar is None else self._grammar.fault

    @property
    def is_slow(self) -> bool:
        """Whether the grammar's masks take long."""
        return self._grammar is not None and self._grammar.is_slow

    @property
    def is_busy(self) -> bool:
        """Whether the grammar's next mask is being made."""
        return self._grammar is not None and self._grammar.is_busy

    @property
    def is_optimistic(self) -> bool:
        """False: the words need masks."""
        return False

    def accepts(self, token: int) -> bool:
        """True, as every draw has a mask."""
        del token
        return True

    def consume(self, token: int) -> None:
        """Append a token to the text."""
        self._end = self._append(self._end, token)
        if self._grammar is not None:
            self._grammar.consume(token)

    def force(self, most: int) -> list[int]:
        """Return none: each draw is banned the words that it would end."""
        del most
        return []

    def prepare(self) -> None:
        """Begin with the grammar's next mask, if its masks take long."""
        if self._grammar is not None:
            self._grammar.prepare()

    def fill(self, mask: memoryview) -> None:
        """Write which tokens may follow. Without a grammar the mask comes with all allowed."""
        if self._grammar is not None:
            self._grammar.fill(mask)
        self._ban(self._end, mask)

    def look_ahead(self, guesses: Sequence[int], masks: Sequence[memoryview]) -> None:
        """Write which tokens may follow behind each guess. Without a grammar any but the words' last ones."""
        if self._grammar is not None:
            self._grammar.look_ahead(guesses, masks)
        end = self._end
        for guess, mask in zip(guesses, masks[1:], strict=True):
            end = self._append(end, guess)
            if self._grammar is None:
                mask[:] = b"\xff" * len(mask)
            self._ban(end, mask)

    def _append(self, end: list[int], token: int) -> list[int]:
        return [*end, token][-self._lengths[-1] :]

    def _ban(self, end: list[int], mask: memoryview) -> None:
        for length in self._lengths:
            if length > len(end):
                return
            for token in self._last_tokens.get(tuple(end[-length:]), ()):
                mask[token >> 3] &= ~(1 << (token & 7))


def ban_words(words: Words, matchers: Sequence[Matcher], num_sequences: int) -> Sequence[Matcher]:
    """Return matchers that ban these words too, one for each sequence; without words the same matchers."""
    if not words:
        return matchers
    grammars: Sequence[Matcher | None] = matchers or [None] * num_sequences
    return [BadWordMatcher(words, grammar) for grammar in grammars]
