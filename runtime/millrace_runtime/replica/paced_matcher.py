"""A sequence's matcher that makes its masks in a thread while they take long, so that no other row waits."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Final, Protocol, Self

from millrace_runtime.engine.matcher import allows

SLOW_SECONDS: Final = 0.002
"""Of CPU time. Of the masks of 500 schemas in the shape of public ones, fewer than a hundredth take so long.
A grammar that is made to be ambiguous takes 11 ms for each."""
SLOW_MASKS: Final = 16
"""The thread makes this many masks after a slow one."""


class Fork(Protocol):
    """A sequence's state in its grammar. One thread at a time may use it."""

    def copy(self) -> Self:
        """Return another one in the same state."""

    @property
    def is_stopped(self) -> bool:
        """Whether nothing can follow: the text is whole, or the matcher has failed."""

    @property
    def fault(self) -> str | None:
        """Why the matcher has failed; None if it has not."""

    def accepts(self, token: int) -> bool:
        """Whether a token may follow."""

    def consume(self, token: int) -> None:
        """Append a token to the text."""

    def force(self, most: int) -> list[int]:
        """Append up to `most` of the tokens that are forced now, and return them."""

    def fill(self, mask: memoryview | bytearray) -> None:
        """Write which tokens may follow. After a fault none may."""


class PacedMatcher:
    """The matcher that the scheduler has for a sequence with a grammar."""

    def __init__(
        self,
        fork: Fork,
        thread: Executor,
        wake: Callable[[], None],
        clock: Callable[[], float] = time.thread_time,
        *,
        is_optimistic: bool = False,
    ) -> None:
        """The thread calls `wake` after each mask. `clock` measures the calling thread."""
        self._fork, self._thread, self._wake, self._clock = fork, thread, wake, clock
        self.is_optimistic = is_optimistic
        self._num_slow = 0
        """Masks that are still made in the thread."""
        self._ahead: Future[bytearray] | None = None
        """The next mask, if the thread makes it or has made it."""
        self._mask_bytes = 0
        self._until = 0.0
        """By the clock, when the masks of the step have taken as long as a slow one."""
        self.is_stopped, self.fault = fork.is_stopped, fork.fault

    @property
    def is_slow(self) -> bool:
        """Whether its masks take long.

        False for an optimistic grammar: it is one of ours, and few of its draws have a mask. A thread would
        make masks that no draw uses, and the tokens of a draft would come meanwhile.
        """
        return self._num_slow > 0 and not self.is_optimistic

    @property
    def is_busy(self) -> bool:
        """Whether the thread is making its next mask."""
        return self._ahead is not None and not self._ahead.done()

    def accepts(self, token: int) -> bool:
        """Whether a token may follow that was drawn without a mask. No thread makes a mask then."""
        return self._fork.accepts(token)

    def consume(self, token: int) -> None:
        """Append a token to the text."""
        self._ahead = None
        self._fork.consume(token)
        self._read_state()

    def force(self, most: int) -> list[int]:
        """Append up to `most` of the tokens that are forced now, and return them."""
        forced = self._fork.force(most)
        self._read_state()
        return forced

    def prepare(self) -> None:
        """Have the thread make the next mask, while masks take long. Nobody else uses the fork meanwhile."""
        if self.is_slow and not self.is_stopped:
            self._ahead = self._thread.submit(self._make)
            self._ahead.add_done_callback(lambda _: self._wake())

    def fill(self, mask: memoryview) -> None:
        """Write which tokens may follow."""
        self._until = self._clock() + SLOW_SECONDS
        if self._ahead is not None:
            mask[:] = self._ahead.result()
        else:
            self._mask_bytes = mask.nbytes
            self._time(self._fork, mask)
        self._read_state()

    def look_ahead(self, guesses: Sequence[int], masks: Sequence[memoryview]) -> None:
        """Write which tokens may follow behind each guess, until all masks have taken as long as a slow one.

        It uses a copy, which may fail where the text never goes.
        """
        ahead: Fork | None = None
        for number, guess in enumerate(guesses):
            if self._clock() > self._until or not allows(masks[number], guess):
                return
            ahead = ahead or self._fork.copy()
            ahead.consume(guess)
            if ahead.is_stopped:
                return
            self._time(ahead, masks[number + 1])

    def _make(self) -> bytearray:
        mask = bytearray(self._mask_bytes)
        self._time(self._fork, mask)
        return mask

    def _time(self, fork: Fork, mask: memoryview | bytearray) -> None:
        began = self._clock()
        fork.fill(mask)
        is_slow = self._clock() - began > SLOW_SECONDS
        self._num_slow = SLOW_MASKS if is_slow else max(0, self._num_slow - 1)

    def _read_state(self) -> None:
        """Read it while the thread does not use the fork."""
        self.is_stopped, self.fault = self._fork.is_stopped, self._fork.fault
