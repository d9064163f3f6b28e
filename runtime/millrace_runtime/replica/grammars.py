"""Compiles the grammars of requests beside the engine's loop.

Their sequences wait here and not in the scheduler, whose oldest sequence must be able to run.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import msgspec

from millrace_runtime.engine.matcher import Matcher
from millrace_runtime.grammar.errors import GrammarError
from millrace_runtime.protocol.messages import Generate

COMPILE_SECONDS = 10.0
"""A request whose grammar is not compiled by then fails. The text worker has compiled it before, in less."""
_MAX_COMPILED = 32
"""Grammars that stay compiled: the last used ones."""


class Root(Protocol):
    """A compiled grammar."""

    def fork(self, stop_token_ids: Sequence[int]) -> Matcher:
        """Return a sequence's matcher. These tokens end its text."""


class Compiled(NamedTuple):
    """A request with a matcher for each of its sequences, or why there are none."""

    request: Generate
    matchers: list[Matcher]
    error: str | None = None


@dataclass(eq=False)
class _WaitingRequest:
    request: Generate
    until: float
    matchers: Future[list[Matcher]]
    aborted: set[int] = field(default_factory=set)

    @property
    def num_sequences(self) -> int:
        return len(self.request.sequences) - len(self.aborted)

    def finish(self, error: str | None) -> Compiled:
        """Return what is left of it."""
        sequences = self.request.sequences
        places = [place for place, new in enumerate(sequences) if new.sequence_id not in self.aborted]
        request = msgspec.structs.replace(self.request, sequences=[sequences[place] for place in places])
        if error is not None:
            return Compiled(request, [], error)
        matchers = self.matchers.result()
        return Compiled(request, [matchers[place] for place in places])


class GrammarCompiler:
    """Compiles in one thread, in the order of arrival."""

    def __init__(
        self,
        compile_grammar: Callable[[str], Root],
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`compile_grammar` raises GrammarError. The thread calls `wake` after each request."""
        self._compile = compile_grammar
        self._wake = wake
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "grammars")
        self._roots: OrderedDict[str, Root] = OrderedDict()
        """Only the thread uses it."""
        self._waiting: list[_WaitingRequest] = []

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for their grammar."""
        return sum(waiting.num_sequences for waiting in self._waiting)

    def begin(self, request: Generate) -> None:
        """Compile a request's grammar."""
        matchers = self._thread.submit(self._fork, request)
        self._waiting.append(_WaitingRequest(request, self._clock() + COMPILE_SECONDS, matchers))
        matchers.add_done_callback(lambda _: self._wake())

    def abort(self, sequence_id: int) -> None:
        """Drop a sequence that waits here; others are ignored."""
        for waiting in self._waiting:
            if any(new.sequence_id == sequence_id for new in waiting.request.sequences):
                waiting.aborted.add(sequence_id)

    def pop_compiled(self) -> Iterator[Compiled]:
        """Return the requests that need not wait any more."""
        if not self._waiting:
            return
        now, all_waiting, self._waiting = self._clock(), self._waiting, []
        for waiting in all_waiting:
            error = _read_error(waiting, now)
            if error is None and not waiting.matchers.done():
                self._waiting.append(waiting)
            elif waiting.num_sequences:
                yield waiting.finish(error)

    def _fork(self, request: Generate) -> list[Matcher]:
        assert request.grammar is not None
        root = self._roots.get(request.grammar) or self._compile(request.grammar)
        self._roots[request.grammar] = root
        self._roots.move_to_end(request.grammar)
        if len(self._roots) > _MAX_COMPILED:
            self._roots.popitem(last=False)
        return [root.fork(request.stop_token_ids) for _ in request.sequences]


def _read_error(waiting: _WaitingRequest, now: float) -> str | None:
    if not waiting.matchers.done():
        late = f"the grammar was not compiled within {COMPILE_SECONDS:g} s: make it smaller"
        if now < waiting.until:
            return None
        waiting.matchers.cancel()
        return late
    error = waiting.matchers.exception()
    if error is None:
        return None
    if isinstance(error, GrammarError):
        return f"the grammar can't be used: {error}"
    return f"compiling the grammar failed: {error!r}"
