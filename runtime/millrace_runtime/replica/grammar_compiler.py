"""Compiles the grammars of requests in threads beside the engine's loop, and keeps those that were used last.

Their sequences wait here and not in the scheduler, whose oldest sequence must be able to run.
"""

import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import msgspec

from millrace_runtime.grammar.errors import GrammarError
from millrace_runtime.grammar.messages import PROOF_SECONDS, PROOF_STACK_BYTES
from millrace_runtime.protocol.messages import Generate, Grammar
from millrace_runtime.protocol.sampling import Sampling
from millrace_runtime.replica.paced_matcher import Fork, PacedMatcher

COMPILE_SECONDS: Final = PROOF_SECONDS[-1]
"""Of CPU time, as the longest proof. A request fails if its grammar takes longer. Nothing ends the thread,
but the proof of the same text took no longer, and no more memory than `grammar/proof.py` allows."""
LONG_SECONDS = 0.1
"""If a grammar's proof took longer, the thread of long grammars compiles it."""
STACK_BYTES: Final = 8 * PROOF_STACK_BYTES
"""Of each thread. The system's own default may be 2 MB."""
_NICENESS = 10
"""Of the threads of long grammars and of slow masks: the model computes first."""
MAX_KEPT_BYTES: Final = 64 << 20
"""Of kept grammars, as their proofs have measured. Of 500 schemas in the shape of public ones the median
takes 0.16 MB, and the largest 1.5 MB."""
MAX_KEPT: Final = 128
"""Each may grow by 12 MB with use (`grammar/native_matcher.py`), which no proof has measured."""


class Root(Protocol):
    """A compiled grammar."""

    def fork(self, stop_token_ids: Sequence[int], *, is_forcing: bool) -> Fork:
        """Return a sequence's matcher. These tokens end its text."""


class KeptGrammars:
    """The compiled grammars that were used last, within a number of bytes. Several threads may use it."""

    def __init__(self, max_bytes: int = MAX_KEPT_BYTES, max_count: int = MAX_KEPT) -> None:
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
        """Keep a compiled grammar. It may displace those that were used the longest time ago."""
        with self._lock:
            if grammar in self:
                return
            self._kept[grammar.text] = grammar, root
            self._num_bytes += grammar.num_bytes
            while self._num_bytes > self._max_bytes or len(self._kept) > self._max_count:
                _, (oldest, _) = self._kept.popitem(last=False)
                self._num_bytes -= oldest.num_bytes


class Compiled(NamedTuple):
    """A request with a matcher for each of its sequences, or the error of its grammar."""

    request: Generate
    matchers: list[PacedMatcher]
    error: str | None = None


@dataclass(eq=False)
class _WaitingRequest:
    request: Generate
    grammar: Grammar
    thread: int = 0
    """The index of the thread that compiles the grammar."""
    began_at: float | None = None
    """By the thread's clock, when its turn has come."""
    matchers: Future[list[PacedMatcher]] = field(default_factory=Future)
    aborted: set[int] = field(default_factory=set)

    @property
    def num_sequences(self) -> int:
        return len(self.request.sequences) - len(self.aborted)

    def abort(self, sequence_id: int) -> None:
        """Drop a sequence. Without any the grammar is not compiled, unless its turn has come."""
        if any(new.sequence_id == sequence_id for new in self.request.sequences):
            self.aborted.add(sequence_id)
        if not self.num_sequences:
            self.matchers.cancel()

    def finish(self, error: str | None) -> Compiled:
        """Return the request with the sequences that were not aborted."""
        sequences = self.request.sequences
        places = [place for place, new in enumerate(sequences) if new.sequence_id not in self.aborted]
        request = msgspec.structs.replace(self.request, sequences=[sequences[place] for place in places])
        if error is not None and self.grammar.is_optional:
            return Compiled(msgspec.structs.replace(request, grammar=None), [])
        if error is not None:
            return Compiled(request, [], error)
        matchers = self.matchers.result()
        return Compiled(request, [matchers[place] for place in places])


def read_thread_time(thread: int) -> float:
    """Return the CPU time that a thread has used."""
    return time.clock_gettime(time.pthread_getcpuclockid(thread))


class GrammarCompiler:
    """Compiles in order of arrival. Grammars that take long have a thread of their own."""

    def __init__(
        self,
        compile_grammar: Callable[[Grammar], Root],
        wake: Callable[[], None],
        clock: Callable[[int], float] = read_thread_time,
    ) -> None:
        """`compile_grammar` raises GrammarError. Threads call `wake` after a request and a slow mask.

        `clock` measures a thread.
        """
        self._compile = compile_grammar
        self._wake = wake
        self._clock = clock
        self._thread = _start_thread("grammars")
        self._long_thread = _start_thread("long-grammars", _be_nice)
        self._mask_thread = _start_thread("slow-masks", _be_nice)
        self._kept = KeptGrammars()
        self._waiting: list[_WaitingRequest] = []

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for their grammar."""
        return sum(waiting.num_sequences for waiting in self._waiting)

    def begin(self, request: Generate) -> None:
        """Compile a request's grammar."""
        assert request.grammar is not None
        waiting = _WaitingRequest(request, request.grammar)
        is_long = request.grammar.seconds > LONG_SECONDS and request.grammar not in self._kept
        thread = self._long_thread if is_long else self._thread
        waiting.matchers = thread.submit(self._fork, waiting)
        waiting.matchers.add_done_callback(lambda _: self._wake())
        self._waiting.append(waiting)

    def abort(self, sequence_id: int) -> None:
        """Drop a sequence that waits here; others are ignored."""
        for waiting in self._waiting:
            waiting.abort(sequence_id)
        self._waiting = [waiting for waiting in self._waiting if waiting.num_sequences]

    def pop_compiled(self) -> Iterator[Compiled]:
        """Return the requests that need not wait any more."""
        if not self._waiting:
            return
        all_waiting, self._waiting = self._waiting, []
        for waiting in all_waiting:
            error = _read_error(waiting, self._clock)
            if error is None and not waiting.matchers.done():
                self._waiting.append(waiting)
            else:
                yield waiting.finish(error)

    def _fork(self, waiting: _WaitingRequest) -> list[PacedMatcher]:
        waiting.thread = threading.get_ident()
        waiting.began_at = self._clock(waiting.thread)
        root = self._kept.get(waiting.grammar)
        if root is None:
            root = self._compile(waiting.grammar)
            self._kept.put(waiting.grammar, root)
        request, is_optimistic = waiting.request, waiting.grammar.is_optimistic
        forks = [
            root.fork(request.stop_token_ids, is_forcing=may_force(request, new.sampling))
            for new in request.sequences
        ]
        return [
            PacedMatcher(fork, self._mask_thread, self._wake, is_optimistic=is_optimistic) for fork in forks
        ]


def may_force(request: Generate, sampling: Sampling) -> bool:
    """Whether a request's grammar may force tokens: not where they may be banned, or have no masks.

    To find a forced text takes as long as a mask in front of it, 13 to 130 ms for one of 60,000 letters, but
    once instead of for each token (measured once by hand).
    """
    if request.grammar is None or request.grammar.is_optimistic:
        return False
    return not request.bad_words and sampling.allowed is None and -math.inf not in sampling.bias.values()


def _start_thread(name: str, initializer: Callable[[], None] | None = None) -> ThreadPoolExecutor:
    """Return an executor of one thread, which runs already: a thread's stack is fixed at its start."""
    before = threading.stack_size(STACK_BYTES)
    try:
        executor = ThreadPoolExecutor(1, name, initializer)
        executor.submit(threading.get_ident)
    finally:
        threading.stack_size(before)
    return executor


def _be_nice() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def _read_error(waiting: _WaitingRequest, clock: Callable[[int], float]) -> str | None:
    if not waiting.matchers.done():
        if waiting.began_at is None or clock(waiting.thread) < waiting.began_at + COMPILE_SECONDS:
            return None
        return f"compiling the grammar took more than {COMPILE_SECONDS:g} s of CPU time: make it smaller"
    error = waiting.matchers.exception()
    if error is None:
        return None
    if isinstance(error, GrammarError):
        return f"the grammar can't be used: {error}"
    return f"compiling the grammar failed: {error!r}"
