"""Tries masks of a schema at places where much may follow, with the model's vocabulary: do limits suffice?"""

import string
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from millrace_runtime.grammar.errors import GrammarError
from millrace_runtime.grammar.grammar import Trial
from millrace_runtime.grammar.json_schema.crowds import VALUE
from millrace_runtime.grammar.matcher import Matcher, Vocabulary
from millrace_runtime.grammar.messages import TOO_LONG

MASK_SECONDS: Final = 0.025
"""Of CPU time. With 152,000 tokens an object of 600 properties that may be left out takes 3.5 ms, and a union
of 180 arrays of itself 110 ms, measured once by hand. The thread of slow masks holds up no other row, but the
first slow one does."""
CONSUME_SECONDS: Final = 0.010
"""Of a token, which the engine's loop appends, with the global lock."""
_ENDS = ",}]"
"""One of these may stand behind a value."""
_SIGNS = string.digits + string.ascii_letters + string.punctuation.replace("\\", "") + " "
_IN_TEXT = f'"{_SIGNS}'
_OUTSIDE = f']}}",:{_SIGNS}'
"""Signs of a value in the order in which they are tried: those that end it come first."""
_MAX_SIGNS = 100
"""Of a value."""


def try_beginnings(vocabulary: Vocabulary, grammar: str, trials: Sequence[Trial]) -> None:
    """Raise GrammarError if a mask behind a beginning exceeds a limit, or takes too long."""
    try:
        root = Matcher.build(vocabulary, grammar)
    except GrammarError:  # the whole schema has been built, so this says nothing of it
        return
    tokens = _list_sign_tokens(vocabulary)
    for trial in trials:
        opened = root.copy()
        for token in vocabulary.tokenize(trial.opening):
            opened.consume(token)
        for text in trial.beginnings:
            if (why := _Walk(vocabulary, tokens, opened.copy()).run(text)) is not None:
                raise GrammarError(f"{trial.place}: {why}: make it smaller, or list properties in `required`")


class _Walk:
    """One text, token by token, with a mask before each and behind the last."""

    def __init__(self, vocabulary: Vocabulary, sign_tokens: Mapping[str, int], matcher: Matcher) -> None:
        self._vocabulary, self._sign_tokens, self._matcher = vocabulary, sign_tokens, matcher
        self._mask = bytearray(vocabulary.end_bits.nbytes)

    def run(self, text: str) -> str | None:
        """Return why a mask or a token fails, or None. It stops where the text does not fit."""
        for number, part in enumerate(text.split(VALUE)):
            if number and not self._append_value():
                return None
            for token in self._vocabulary.tokenize(part):
                if (why := self._fill()) is not None or not self._matcher.accepts(token):
                    return why
                if not self._is_fast(lambda matcher: matcher.consume(token), CONSUME_SECONDS):  # noqa: B023
                    return f"a token {TOO_LONG}"
                if self._matcher.is_stopped:
                    return self._matcher.fault
        return self._fill()

    def _append_value(self) -> bool:
        """Append any value, and return whether it has ended."""
        depth, is_text = 0, False
        for _ in range(_MAX_SIGNS):
            if (sign := self._append_sign(_IN_TEXT if is_text else _OUTSIDE)) is None:
                return False
            is_text ^= sign == '"'
            depth += 0 if is_text else (sign in "[{") - (sign in "]}")
            if not depth and not is_text and any(map(self._may_follow, _ENDS)):
                return True
        return False

    def _append_sign(self, signs: str) -> str | None:
        """Append the first of these that may follow, and return it."""
        if (sign := next(filter(self._may_follow, signs), None)) is not None:
            self._matcher.consume(self._sign_tokens[sign])
        return sign

    def _may_follow(self, sign: str) -> bool:
        return sign in self._sign_tokens and self._matcher.accepts(self._sign_tokens[sign])

    def _fill(self) -> str | None:
        is_fast = self._is_fast(lambda matcher: matcher.fill(self._mask), MASK_SECONDS)
        return self._matcher.fault or (None if is_fast else f"a mask {TOO_LONG}")

    def _is_fast(self, step: Callable[[Matcher], None], limit: float) -> bool:
        """Do a step, and return whether its time is below the limit: at once, or when the lexer is built."""
        before = self._matcher.copy()
        return any(_time(step, matcher) <= limit for matcher in (self._matcher, before))


def _list_sign_tokens(vocabulary: Vocabulary) -> dict[str, int]:
    """Return the tokens of signs that are one."""
    found = {sign: vocabulary.tokenize(sign) for sign in {*_IN_TEXT, *_OUTSIDE}}
    return {sign: tokens[0] for sign, tokens in found.items() if len(tokens) == 1}


def _time(step: Callable[[Matcher], None], matcher: Matcher) -> float:
    began = time.thread_time()
    step(matcher)
    return time.thread_time() - began
