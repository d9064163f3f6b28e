"""An engine that says given texts: the real loop, scheduler and grammars over the simulated executor."""

import bisect
import contextlib
import socket
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from millrace_runtime.chat.tokenizer import Tokenizer
from millrace_runtime.engine.scheduler import Scheduler
from millrace_runtime.engine.simulated_executor import SimulatedExecutor
from millrace_runtime.grammar.matcher import Matcher, Vocabulary
from millrace_runtime.protocol.executor import Executor
from millrace_runtime.protocol.messages import EngineReady
from millrace_runtime.protocol.step import KvGroup, Limits
from millrace_runtime.replica.engine_loop import EngineChannel, EngineLoop
from millrace_runtime.replica.errors import PeerGone

START_TOKEN = "<|start|>"
"""Begins a turn of a conversation; its role follows, and a line break."""
MAX_MODEL_LENGTH = 4096
_BLOCK_SIZE = 16
_NUM_SEQUENCES = 32
_MAX_DRAFT = 4
_NO_ANSWER = "Nothing is written for this. "
_ROLE = b"assistant\n"
"""What follows START_TOKEN before an answer."""


class _Line(NamedTuple):
    """A text as its tokens, and the byte at which each begins."""

    tokens: list[int]
    starts: list[int]
    num_bytes: int


class Script:
    """What a model says, by the text before it. It is a function of the sequence's tokens alone.

    An answer belongs to a cue, a text. Of a conversation the last turn counts, and of a prompt without turns
    all of it. The cue that comes last there is answered. Where a grammar leads the sequence away from the
    script, the script goes on at the same byte. After a text without a cue comes a sentence of no meaning,
    from any place in it.
    """

    def __init__(self, tokenizer: Tokenizer, answers: Mapping[str, str]) -> None:
        self._tokenizer = tokenizer
        self._end, *_ = tokenizer.end_token_ids
        [[self._start]] = tokenizer.encode_batch([START_TOKEN], add_special_tokens=False)
        self._lines = {cue.encode(): self._split(text) for cue, text in answers.items()}
        self._no_line = self._split(_NO_ANSWER)

    def next_token(self, seen: list[list[int]]) -> int:
        """Return the token after those that the only KV group sees. After its end an answer starts over."""
        [tokens] = seen
        line, num_said = self._find_place(tokens)
        place = num_said % line.num_bytes
        if num_said and place == 0 and tokens[-1] != self._end:
            return self._end
        return line.tokens[bisect.bisect_left(line.starts, place, hi=len(line.starts) - 1)]

    def propose(self, tokens: list[int]) -> list[int]:
        """Return guesses at the next tokens: the right ones, and for each third length one that is wrong."""
        guessed = list(tokens)
        for _ in range(_MAX_DRAFT):
            guessed.append(self.next_token([guessed]))
        if len(tokens) % 3 == 0:
            guessed[len(tokens) + 1] = self._end
        return guessed[len(tokens) :]

    def _find_place(self, tokens: list[int]) -> tuple[_Line, int]:
        """Return the answer to a sequence, and how many bytes of it the sequence has."""
        turns = [place for place, token in enumerate(tokens) if token == self._start]
        if not turns:
            text = self._spell(tokens)
            line, end = self._find_line(text)
            return line, len(text) - end
        begin = turns[-2] if len(turns) > 1 else 0
        line, _ = self._find_line(self._spell(tokens[begin : turns[-1]]))
        return line, len(self._spell(tokens[turns[-1] :])) - len(_ROLE)

    def _find_line(self, text: bytes) -> tuple[_Line, int]:
        """Return the answer to the cue that comes last, and where the cue ends; without one 0."""
        place, cue = max(((text.rfind(cue), cue) for cue in self._lines), default=(-1, b""))
        return (self._no_line, 0) if place < 0 else (self._lines[cue], place + len(cue))

    def _spell(self, tokens: list[int]) -> bytes:
        spell, is_special = self._tokenizer.token_bytes, self._tokenizer.is_special
        return b"".join(spell(token) for token in tokens if not is_special(token))

    def _split(self, text: str) -> _Line:
        [tokens] = self._tokenizer.encode_batch([text], add_special_tokens=False)
        *starts, num_bytes = accumulate((len(self._spell([token])) for token in tokens), initial=0)
        return _Line(tokens, starts, num_bytes)


@contextlib.contextmanager
def run_engine(
    model_path: Path,
    answers: Mapping[str, str],
    max_model_length: int = MAX_MODEL_LENGTH,
    *,
    has_drafts: bool = False,
) -> Iterator[socket.socket]:
    """Run an engine in a thread, and yield the HTTP side's socket. Its close ends the engine."""
    tokenizer = Tokenizer.load(model_path)
    vocabulary = Vocabulary(tokenizer)
    num_blocks = _NUM_SEQUENCES * max_model_length // _BLOCK_SIZE
    limits = Limits(
        groups=(KvGroup(num_blocks),),
        block_size=_BLOCK_SIZE,
        num_slots=_NUM_SEQUENCES,
        depth=1,
        max_model_length=max_model_length,
        vocabulary_size=vocabulary.size,
        max_batched_tokens=2048,
        max_draft=_MAX_DRAFT if has_drafts else 0,
    )
    ours, theirs = socket.socketpair()
    channel = EngineChannel(theirs)
    script = Script(tokenizer, answers)
    executor = SimulatedExecutor(limits, script.next_token, script.propose if has_drafts else None)
    loop = EngineLoop(
        channel, Scheduler(limits), executor, partial(Matcher.compile, vocabulary), beat=lambda: None
    )
    thread = threading.Thread(target=_run, args=(loop, theirs), name="engine")
    channel.send(_describe(executor))
    thread.start()
    try:
        yield ours
    finally:
        ours.close()
        thread.join()


def _run(loop: EngineLoop, sock: socket.socket) -> None:
    with sock, contextlib.suppress(PeerGone):
        loop.run()


def _describe(executor: Executor) -> EngineReady:
    limits = executor.limits
    return EngineReady(
        max_model_length=limits.max_model_length,
        num_blocks=limits.groups[0].num_blocks,
        kv_tokens=limits.groups[0].num_blocks * limits.block_size,
        block_size=limits.block_size,
        max_sequences=limits.num_slots,
        vocabulary_size=limits.vocabulary_size,
        placement=executor.placement,
        startup_seconds={},
    )
