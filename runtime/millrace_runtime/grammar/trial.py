"""Tries masks of a schema where much may follow: there limits show, with the model's own vocabulary."""

import time
from collections.abc import Callable
from typing import Final

from millrace_runtime.grammar.errors import GrammarError
from millrace_runtime.grammar.grammar import Trial
from millrace_runtime.grammar.matcher import Matcher, Vocabulary

MASK_SECONDS: Final = 0.010
"""Of CPU time. With 152,000 tokens an object of 600 properties that may be left out takes 3.5 ms, and a union
of 180 arrays of itself 110 ms, measured once by hand. The thread of slow masks holds up no other row, but the
first slow one does."""
CONSUME_SECONDS: Final = 0.005
"""Of a token, which the engine's loop appends, with the global lock."""


def try_beginnings(vocabulary: Vocabulary, trial: Trial) -> None:
    """Raise GrammarError if a mask behind a beginning exceeds a limit, or takes too long."""
    try:
        root = Matcher.build(vocabulary, trial.grammar)
    except GrammarError as error:
        raise GrammarError(f"{trial.place}: {error}: make it smaller") from error
    for text in trial.beginnings:
        if (why := _Walk(vocabulary, root.copy()).run(text)) is not None:
            raise GrammarError(f"{trial.place}: {why}: make it smaller, or list properties in `required`")


class _Walk:
    """One text, token by token, with a mask before each and behind the last."""

    def __init__(self, vocabulary: Vocabulary, matcher: Matcher) -> None:
        self._vocabulary, self._matcher = vocabulary, matcher
        self._mask = bytearray(vocabulary.end_bits.nbytes)

    def run(self, text: str) -> str | None:
        """Return what is wrong, or None. It stops where the text does not fit."""
        for token in self._vocabulary.tokenize(text):
            if (why := self._fill()) is not None or not self._matcher.accepts(token):
                return why
            if not self._is_fast(lambda matcher: matcher.consume(token), CONSUME_SECONDS):  # noqa: B023
                return "a token takes too long"
            if self._matcher.is_stopped:
                return self._matcher.fault
        return self._fill()

    def _fill(self) -> str | None:
        is_fast = self._is_fast(lambda matcher: matcher.fill(self._mask), MASK_SECONDS)
        return self._matcher.fault or (None if is_fast else "a mask takes too long")

    def _is_fast(self, step: Callable[[Matcher], None], limit: float) -> bool:
        """Do a step, and return whether its time is below the limit: at once, or when the lexer is built."""
        before = self._matcher.copy()
        return any(_time(step, matcher) <= limit for matcher in (self._matcher, before))


def _time(step: Callable[[Matcher], None], matcher: Matcher) -> float:
    began = time.thread_time()
    step(matcher)
    return time.thread_time() - began
