"""The compiled grammars that the engine keeps: those that were used last, within a number of bytes."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, Protocol

from millrace_runtime.protocol.messages import Grammar
from millrace_runtime.replica.paced_matcher import Fork

MAX_BYTES: Final = 64 << 20
"""By what the proofs have measured. Of 500 schemas in the shape of public ones the median takes 0.16 MB, and
the largest 1.5 MB."""
MAX_COUNT: Final = 512


class Root(Protocol):
    """A compiled grammar."""

    def fork(self, stop_token_ids: Sequence[int]) -> Fork:
        """Return a sequence's matcher. These tokens end its text."""


class KeptGrammars:
    """Several threads may use it."""

    def __init__(self, max_bytes: int = MAX_BYTES, max_count: int = MAX_COUNT) -> None:
        self._max_bytes, self._max_count = max_bytes, max_count
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[Grammar, Root]] = OrderedDict()
        """By the grammar's text."""
        self._num_bytes = 0

    def __contains__(self, grammar: Grammar) -> bool:
        return grammar.text in self._kept

    def get(self, grammar: Grammar) -> Root | None:
        """Return a compiled grammar, or None."""
        with self._lock:
            if grammar not in self:
                return None
            self._kept.move_to_end(grammar.text)
            return self._kept[grammar.text][1]

    def put(self, grammar: Grammar, root: Root) -> None:
        """Keep a compiled grammar. Others may leave for it."""
        with self._lock:
            if grammar in self:
                return
            self._kept[grammar.text] = grammar, root
            self._num_bytes += grammar.num_bytes
            while self._num_bytes > self._max_bytes or len(self._kept) > self._max_count:
                _, (oldest, _) = self._kept.popitem(last=False)
                self._num_bytes -= oldest.num_bytes
