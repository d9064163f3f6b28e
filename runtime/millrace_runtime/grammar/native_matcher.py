"""llguidance's matcher of one text, which goes on when its lexer is full.

Matchers that are copied from each other share a lexer. It keeps each state that any of their texts has met,
so a grammar becomes faster with use. It takes no further state beyond a number of them, and then all of these
matchers fail. Here such a matcher takes a lexer that is compiled anew, and reads its text again.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

_MAX_LEXER_STATES = 20_000
"""They took 12 MB, measured once by hand. In a string with a `maxLength` each letter takes four or five. Of a
list of texts each letter takes one."""
_FULL = "too many states"
"""In the fault of a full lexer."""
_MAX_ROW = 3000
"""Items in a row of Earley's parser. 600 properties that may be left out have 2,400 behind the brace, and 140
more if their values are of 20 kinds of objects."""
_MAX_CLIENTS_ROW = 300
"""Where a client wrote the rules. The ambiguous `s: s s | s s s | /[a-z]/` took 79 ms a token after 100
letters with 2,000 items, and fails at 11 ms with 300."""
_MAX_STEP_ITEMS = 120_000
"""Of all rows of a mask. Behind a blank each longer blank has a row, up to the longest before a sign in one
token: 3 rows with the shipped model's vocabulary, 23 with one of 129,000 tokens, and 32 with one of 152,000,
by hand. So `trial.py` tries schemas with the model's own vocabulary."""
_MAX_CLIENTS_STEP_ITEMS = 10_000
"""Where a client wrote the rules. What a mask of a schema costs is tried in its proof."""
Answer = TypeVar("Answer")


class Lexers:
    """Owner of the lexer that the matchers of a grammar share. Several threads may use it."""

    def __init__(self, tokenizer: LLTokenizer, grammar: str, *, is_of_client: bool) -> None:
        """Compile the grammar. `is_of_client`: whether a client wrote its rules.

        Without precomputed lexemes the median of 250 schemas in the shape of public ones compiles in 2.0 ms
        of CPU time instead of 2.4, and no mask takes longer.
        """
        self._tokenizer, self._grammar = tokenizer, grammar
        self._limits = LLParserLimits(
            max_items_in_row=_MAX_CLIENTS_ROW if is_of_client else _MAX_ROW,
            max_lexer_states=_MAX_LEXER_STATES,
            step_max_items=_MAX_CLIENTS_STEP_ITEMS if is_of_client else _MAX_STEP_ITEMS,
            precompute_large_lexemes=False,
            verbose_errors=False,
        )
        self._lock = threading.Lock()
        self._number = 0
        """Of the present lexer."""
        self._begun = self._compile()
        """A matcher with it, before any text."""

    def open(self, full: int | None = None) -> tuple[LLMatcher, int]:
        """Return a matcher before any text, and its lexer's number. The lexer `full` is replaced before."""
        with self._lock:
            if self._number == full:
                self._begun, self._number = self._compile(), self._number + 1
            return self._begun.deep_copy(), self._number

    def is_full(self, number: int) -> bool:
        """Whether a lexer is full. A matcher notices that at its next token, not at the one that fills it."""
        with self._lock:
            probe = self._begun.deep_copy()
            probe.consume_token(0)
            return number != self._number or _FULL in probe.get_error()

    def _compile(self) -> LLMatcher:
        return LLMatcher(self._tokenizer, self._grammar, log_level=0, limits=self._limits)


@dataclass(eq=False)
class NativeMatcher:
    """The state of one text in its grammar. One thread at a time may use it."""

    _lexers: Lexers
    _matcher: LLMatcher
    _lexer: int
    """The number of the matcher's lexer."""
    _tokens: list[int] = field(default_factory=list)
    """All tokens of the text."""
    _has_failed: bool = False
    """Whether no other lexer helps: a text may fill one alone."""

    @classmethod
    def begin(cls, lexers: Lexers) -> "NativeMatcher":
        """Return the matcher of an empty text."""
        return cls(lexers, *lexers.open())

    def copy(self) -> "NativeMatcher":
        """Return another one in the same state. It took 0.03 ms for 1,300 tokens, measured once by hand."""
        return replace(self, _matcher=self._matcher.deep_copy(), _tokens=[*self._tokens])

    @property
    def is_stopped(self) -> bool:
        """Whether nothing can follow: the text is whole, or the matcher has failed."""
        return bool(self._matcher.is_stopped())

    @property
    def is_accepting(self) -> bool:
        """Whether the text is whole."""
        return bool(self._matcher.is_accepting())

    @property
    def fault(self) -> str | None:
        """Why the matcher has failed, in the library's words; None if it has not."""
        return self._matcher.get_error() if self._matcher.is_error() else None

    def accepts(self, token: int) -> bool:
        """Whether a token may follow."""
        return self._try(lambda matcher: matcher.validate_tokens([token])) == 1

    def consume(self, token: int) -> bool:
        """Append a token. Return whether the grammar allows it; if not, the matcher has failed."""
        self._tokens.append(token)
        return bool(self._matcher.consume_token(token)) or self._renew()

    def find_forced(self) -> list[int]:
        """Return the tokens of the text that must follow, as the tokenizer has them.

        The library leaves out a last one that may be part of a longer token.
        """
        return list(self._try(lambda matcher: matcher.compute_ff_tokens()))

    def fill(self, address: int, num_bytes: int) -> None:
        """Write the mask of the tokens that may follow to an address in memory."""
        self._try(lambda matcher: matcher.unsafe_compute_mask_ptr(address, num_bytes))

    def _try(self, ask: Callable[[LLMatcher], Answer]) -> Answer:
        """Return the library's answer, of another lexer if the present one is full."""
        answer = ask(self._matcher)
        if self._matcher.is_error() and self._renew():
            answer = ask(self._matcher)
            self._has_failed = self._matcher.is_error()
        return answer

    def _renew(self) -> bool:
        """Read the text with another lexer if the present one is full. Return whether that has helped."""
        if self._has_failed or not self._lexers.is_full(self._lexer):
            return False
        self._matcher, self._lexer = self._lexers.open(self._lexer)
        self._has_failed = not all(map(self._matcher.consume_token, self._tokens))
        return not self._has_failed
