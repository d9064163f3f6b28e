"""Proves grammars, each in a fork of this process: a fork can be killed, and it inherits the vocabulary."""

import math
import os
import selectors
import signal
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, NoReturn, TypeAlias

import msgspec

from millrace_runtime.grammar.errors import GrammarError
from millrace_runtime.grammar.messages import (
    TOO_LONG,
    Disproven,
    FromGrammarWorker,
    Prove,
    Proven,
    ToGrammarWorker,
    Withdraw,
)
from millrace_runtime.grammar.proof import MEMORY_BYTES, limit_process
from millrace_runtime.grammar.proof_queue import DueProof, ProofQueue
from millrace_runtime.process import end_with_parent
from millrace_runtime.protocol.encoding import FrameDecoder, encode_frame
from millrace_runtime.protocol.messages import Grammar

_READ_BYTES = 1 << 20
_KEPT_BYTES = 16 << 20
"""Of sources and their outcomes: a service asks for the same few grammars."""
PROVISIONAL_SECONDS: Final = 60.0
"""A tool that lost its schema on a busy machine may have it again a minute later. One that always loses it
costs a proof once a minute, and not for each request."""
_BREAKS = "breaks the compiler: make it smaller"
Outcome: TypeAlias = Grammar | str
"""A string says why the grammar can't be used."""
_outcomes = msgspec.msgpack.Decoder(Grammar | str)


class Source(NamedTuple):
    """A grammar to prove."""

    kind: str
    text: str
    before: str


@dataclass
class _Fork:
    """A process that runs a proof."""

    pid: int
    pipe: int
    written: bytearray = field(default_factory=bytearray)
    """The bytes that it has sent through the pipe."""


@dataclass
class _Proof:
    """A proof that somebody waits for."""

    numbers: set[int]
    """Of the answers."""
    fork: _Fork | None = None
    """None while it waits."""


class KeptOutcomes:
    """The outcomes that were used last, up to a number of bytes."""

    def __init__(self, max_bytes: int = _KEPT_BYTES, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes, self._clock = max_bytes, clock
        self._num_bytes = 0
        self._outcomes: OrderedDict[Source, Outcome] = OrderedDict()
        self._ends: dict[Source, float] = {}
        """When the provisional outcomes are forgotten."""

    def get(self, source: Source) -> Outcome | None:
        """Return a source's outcome, or None."""
        if self._clock() >= self._ends.get(source, math.inf):
            self._forget(source)
        if source in self._outcomes:
            self._outcomes.move_to_end(source)
        return self._outcomes.get(source)

    def put(self, source: Source, outcome: Outcome) -> None:
        """Keep an outcome. A refusal by a measured time is not kept: the client may try again at once."""
        if isinstance(outcome, str):
            if TOO_LONG in outcome:
                return
        elif outcome.is_provisional:
            self._ends[source] = self._clock() + PROVISIONAL_SECONDS
        self._outcomes[source] = outcome
        self._num_bytes += _count_bytes(source, outcome)
        while self._num_bytes > self._max_bytes:
            self._forget(next(iter(self._outcomes)))

    def _forget(self, source: Source) -> None:
        self._ends.pop(source, None)
        self._num_bytes -= _count_bytes(source, self._outcomes.pop(source))


class ProofServer:
    """Runs in one thread, which a fork needs, until its socket closes."""

    def __init__(
        self, connection: socket.socket, prove: Callable[[str, str, str], Grammar], seconds: Sequence[float]
    ) -> None:
        """`prove` raises GrammarError. `seconds` of CPU time are the limits of the levels."""
        self._connection, self._prove, self._seconds = connection, prove, seconds
        self._decoder: FrameDecoder[ToGrammarWorker] = FrameDecoder(ToGrammarWorker)  # type: ignore[arg-type]
        self._queue: ProofQueue[Source] = ProofQueue(len(seconds))
        self._proofs: dict[Source, _Proof] = {}
        self._sources: dict[int, Source] = {}
        """By the answer's number."""
        self._kept = KeptOutcomes()
        self._selector = selectors.DefaultSelector()
        self._selector.register(connection, selectors.EVENT_READ)

    def serve(self) -> None:
        """Answer until the peer closes."""
        while True:
            for key, _ in self._selector.select():
                if key.data is not None:
                    self._read_fork(key.data, key.fd)
                elif not self._receive():
                    return
            for due in self._queue.start_due():
                self._start(due)

    def _receive(self) -> bool:
        """Handle what has come. Return False when the peer has closed."""
        data = self._connection.recv(_READ_BYTES)
        for message in self._decoder.feed(data):
            match message:
                case Prove(number, kind, text, before):
                    self._add(number, Source(kind, text, before))
                case Withdraw(number):
                    self._withdraw(number)
        return bool(data)

    def _add(self, number: int, source: Source) -> None:
        if (outcome := self._kept.get(source)) is not None:
            self._answer(number, outcome)
            return
        self._sources[number] = source
        if source in self._proofs:
            self._proofs[source].numbers.add(number)
        else:
            self._proofs[source] = _Proof({number})
            self._queue.add(source)

    def _withdraw(self, number: int) -> None:
        source = self._sources.pop(number, None)
        if source is None:  # it is answered
            return
        proof = self._proofs[source]
        proof.numbers.remove(number)
        if not proof.numbers:
            if proof.fork is not None:
                os.kill(proof.fork.pid, signal.SIGKILL)
                self._reap(proof.fork)
            self._queue.remove(source)
            del self._proofs[source]

    def _start(self, due: DueProof[Source]) -> None:
        pipe, end = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            self._run_fork(parent, due, end)
        os.close(end)
        self._proofs[due.key].fork = _Fork(pid, pipe)
        self._selector.register(pipe, selectors.EVENT_READ, due.key)

    def _run_fork(self, parent: int, due: DueProof[Source], pipe: int) -> NoReturn:
        """Prove, write the outcome, and end: by `limit_process`, or with a status that is not 0."""
        status = 1
        try:
            end_with_parent(parent)
            limit_process(self._seconds[due.level], due.level)
            try:
                outcome: Outcome = self._prove(*due.key)
            except GrammarError as error:
                outcome = str(error).encode(errors="replace").decode()  # a client's name may be no text
            with open(pipe, "wb") as file:
                file.write(msgspec.msgpack.encode(outcome))
            status = 0
        finally:
            os._exit(status)

    def _read_fork(self, source: Source, pipe: int) -> None:
        proof = self._proofs.get(source)
        if proof is None or proof.fork is None or proof.fork.pipe != pipe:
            return  # it was withdrawn just before
        if data := os.read(pipe, _READ_BYTES):
            proof.fork.written += data
            return
        written, status = proof.fork.written, self._reap(proof.fork)
        proof.fork = None
        if status == 0:
            outcome: Outcome = _outcomes.decode(written)
        elif status != -signal.SIGPROF:
            outcome = f"it takes more than {MEMORY_BYTES} bytes of memory, or {_BREAKS}"
        elif self._queue.promote(source):
            return
        else:
            outcome = f"it takes more than {self._seconds[-1]:g} s to compile: make it smaller"
        if status in {0, -signal.SIGPROF}:  # the system may have killed it for another's memory
            self._kept.put(source, outcome)
        self._settle(source, outcome)

    def _reap(self, fork: _Fork) -> int:
        """Return a fork's status, which is negative after a signal."""
        self._selector.unregister(fork.pipe)
        os.close(fork.pipe)
        return os.waitstatus_to_exitcode(os.waitpid(fork.pid, 0)[1])

    def _settle(self, source: Source, outcome: Outcome) -> None:
        """Answer all that wait for a proof."""
        self._queue.remove(source)
        for number in self._proofs.pop(source).numbers:
            del self._sources[number]
            self._answer(number, outcome)

    def _answer(self, number: int, outcome: Outcome) -> None:
        message: FromGrammarWorker = (
            Disproven(number, outcome) if isinstance(outcome, str) else Proven(number, outcome)
        )
        self._connection.sendall(encode_frame(message))


def _count_bytes(source: Source, outcome: Outcome) -> int:
    return len(source.text) + len(source.before) + len(outcome if isinstance(outcome, str) else outcome.text)
