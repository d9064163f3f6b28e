"""One replica's continuous batching in virtual time: events where the batch changes, closed forms between.

While nothing joins or leaves, each step is longer than the one before by the keys that it adds:
k steps of n sequences take k·T + γ·n·k·(k - 1)/2. Prompts are computed in chunks, a step at a time. A
sequence that does not fit in the KV cache any more waits again, and its tokens are computed anew.
"""

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from millrace_operator.autoscale.simulate.agenda import Agenda
from millrace_operator.autoscale.simulate.counters import Counters, Sample
from millrace_operator.autoscale.simulate.hardware import Hardware
from millrace_operator.autoscale.simulate.load import Request


@dataclass(slots=True, eq=False)
class Sequence:
    """A request at a replica."""

    request: Request
    tokens_left: int
    """That it is still to generate."""
    uncomputed: int
    """Tokens of its prompt whose keys are not in the cache yet."""
    context: int = 0
    """Tokens in the cache when it joined the batch last, or so far while its prompt is computed."""
    joined_at_step: int = 0
    first_token_at: float | None = None


class Answer(NamedTuple):
    """A finished request, with its latencies in seconds."""

    request: Request
    time_to_first_token: float
    time_per_output_token: float | None
    """None of an answer of one token."""


@dataclass(slots=True)
class _Stretch:
    """Steps in which the batch does not change."""

    began: float
    num_steps: int
    first_seconds: float
    """Of the first step, without noise."""
    growth_seconds: float
    """By which each step is longer than the one before."""
    factor: float
    """Noise and the replica's own speed."""
    stall_seconds: float
    chunks: list[tuple[Sequence, int]]
    """Prompt tokens computed; then the stretch is one step."""

    def seconds(self, num_steps: int) -> float:
        """Return what so many of its steps take."""
        growth = self.growth_seconds * num_steps * (num_steps - 1) / 2
        return self.stall_seconds + self.factor * (num_steps * self.first_seconds + growth)

    def count_begun(self, elapsed: float) -> int:
        """Return how many steps have begun after some seconds."""
        left = max(elapsed - self.stall_seconds, 0.0) / self.factor
        linear = self.first_seconds - self.growth_seconds / 2
        if self.growth_seconds <= 0:
            return math.floor(left / self.first_seconds) + 1
        root = math.sqrt(linear * linear + 2 * self.growth_seconds * left)
        return math.floor((root - linear) / self.growth_seconds) + 1


class Engine:
    """One replica that serves; tells each answer to `on_answer`."""

    def __init__(
        self,
        agenda: Agenda,
        hardware: Hardware,
        rng: random.Random,
        on_answer: Callable[[Answer], None],
    ) -> None:
        self.counters = Counters()
        self.num_in_flight = 0
        self._agenda = agenda
        self._hardware = hardware
        self._rng = rng
        self._on_answer = on_answer
        self._speed = math.exp(rng.gauss(0, hardware.unevenness))
        self._waiting: deque[Sequence] = deque()
        self._prefilling: list[Sequence] = []
        self._running: dict[Sequence, None] = {}
        """In the order in which they joined."""
        self._ends: list[tuple[int, int, Sequence]] = []
        """By the step after which a sequence ends. One that was preempted stays until then."""
        self._order = itertools.count()
        self._step = 0
        self._context = 0
        """Tokens in the cache of all that run; of those whose prompt is computed in `_prefilled`."""
        self._prefilled = 0
        self._stretch: _Stretch | None = None

    def submit(self, request: Request) -> None:
        """Take a request. Raises ValueError where it is longer than the KV cache."""
        if request.prompt_tokens + request.generation_tokens > self._hardware.kv_tokens:
            raise ValueError(f"{request} does not fit in a KV cache of {self._hardware.kv_tokens} tokens")
        self.counters.received += 1
        self.num_in_flight += 1
        self._waiting.append(Sequence(request, request.generation_tokens, request.prompt_tokens))
        if self._stretch is None:
            self._begin()
        elif self._stretch.num_steps > 1 and self._has_room():
            self._cut(self._stretch)

    def sample(self) -> Sample:
        """Return what a scrape would see now."""
        running = len(self._running) + len(self._prefilling)
        usage = (self._context + self._prefilled) / self._hardware.kv_tokens
        return self.counters.sample(self._agenda.now, running, len(self._waiting), min(usage, 1.0))

    def _has_room(self) -> bool:
        """Whether the first that waits may join the batch."""
        if not self._waiting or len(self._running) + len(self._prefilling) >= self._hardware.max_sequences:
            return False
        used = self._context + self._prefilled + sum(sequence.uncomputed for sequence in self._prefilling)
        free = self._hardware.kv_tokens - used - len(self._running)
        return self._waiting[0].uncomputed <= free or not (self._running or self._prefilling)

    def _begin(self) -> None:
        """Begin the next stretch, if there is anything to compute."""
        self._preempt()
        chunks = self._take_chunks()
        num_running = len(self._running)
        if not chunks and not num_running:
            self._stretch = None
            return
        tokens = num_running + sum(size for _, size in chunks)
        num_steps = 1 if chunks else self._count_steps()
        self._stretch = _Stretch(
            began=self._agenda.now,
            num_steps=num_steps,
            first_seconds=self._hardware.step_seconds(tokens, self._context + self._prefilled),
            growth_seconds=self._hardware.context_seconds * num_running,
            factor=self._speed * math.exp(self._rng.gauss(0, self._hardware.noise / math.sqrt(num_steps))),
            stall_seconds=0.0,
            chunks=chunks,
        )
        self._stretch.stall_seconds = self._draw_stalls(self._stretch.seconds(num_steps))
        self._await_end(self._stretch)

    def _draw_stalls(self, busy_seconds: float) -> float:
        """Return the seconds of all stalls that a stretch has, by Poisson."""
        total, rate = 0.0, self._hardware.stalls_per_hour / 3600
        at = self._rng.expovariate(rate) if rate else math.inf
        while at < busy_seconds:
            total += self._rng.expovariate(1 / self._hardware.stall_seconds)
            at += self._rng.expovariate(rate)
        return total

    def _preempt(self) -> None:
        """Put the newest back to wait while the next step's keys don't fit."""
        while self._context + self._prefilled + len(self._running) > self._hardware.kv_tokens:
            sequence, _ = self._running.popitem()
            done = self._step - sequence.joined_at_step
            self._context -= sequence.context + done
            sequence.tokens_left -= done
            sequence.uncomputed, sequence.context = sequence.context + done, 0
            self._waiting.appendleft(sequence)

    def _take_chunks(self) -> list[tuple[Sequence, int]]:
        """Return what the next step computes of prompts, after all that run."""
        budget = self._hardware.max_batched_tokens - len(self._running)
        chunks = []
        for sequence in self._prefilling:
            chunks.append((sequence, size := min(sequence.uncomputed, budget)))
            budget -= size
        while budget > 0 and self._has_room():
            sequence = self._waiting.popleft()
            self._prefilling.append(sequence)
            chunks.append((sequence, size := min(sequence.uncomputed, budget)))
            budget -= size
        return [(sequence, size) for sequence, size in chunks if size > 0]

    def _count_steps(self) -> int:
        """Return after how many steps a sequence ends, or the KV cache is full."""
        while self._ends[0][2] not in self._running or self._find_end(self._ends[0][2]) != self._ends[0][0]:
            heapq.heappop(self._ends)  # of one that was preempted
        until_end = self._ends[0][0] - self._step
        free = self._hardware.kv_tokens - self._context - self._prefilled
        return max(1, min(until_end, free // len(self._running)))

    @staticmethod
    def _find_end(sequence: Sequence) -> int:
        return sequence.joined_at_step + sequence.tokens_left

    def _await_end(self, stretch: _Stretch) -> None:
        num_steps = stretch.num_steps

        def end() -> None:
            if self._stretch is stretch and stretch.num_steps == num_steps:
                self._end(stretch)

        self._agenda.add(stretch.began + stretch.seconds(num_steps), end)

    def _cut(self, stretch: _Stretch) -> None:
        """End a stretch with the step that has begun: somebody may join."""
        num_steps = stretch.count_begun(self._agenda.now - stretch.began)
        if num_steps < stretch.num_steps:
            stretch.num_steps = num_steps
            self._await_end(stretch)

    def _end(self, stretch: _Stretch) -> None:
        self._count(stretch)
        self._step += stretch.num_steps
        self._context += stretch.num_steps * len(self._running)
        for sequence, size in stretch.chunks:
            self._note_chunk(sequence, size)
        self._finish()
        self._begin()

    def _count(self, stretch: _Stretch) -> None:
        counters, steps, batch = self.counters, stretch.num_steps, len(self._running)
        prompts = sum(size for _, size in stretch.chunks)
        context = self._context + self._prefilled
        counters.steps += steps
        counters.step_seconds += stretch.seconds(steps)
        counters.step_sequences += steps * batch + len(stretch.chunks)
        counters.step_tokens += steps * batch + prompts
        counters.step_context += steps * context + batch * steps * (steps - 1) / 2

    def _note_chunk(self, sequence: Sequence, size: int) -> None:
        """Note that prompt tokens are computed; the last of them give the next token."""
        sequence.uncomputed -= size
        sequence.context += size
        self._prefilled += size
        if sequence.uncomputed:
            return
        self._prefilling.remove(sequence)
        self._prefilled -= sequence.context
        self._context += sequence.context
        if sequence.first_token_at is None:
            sequence.first_token_at = self._agenda.now
            self.counters.observe_first_token(self._agenda.now - sequence.request.at)
        sequence.tokens_left -= 1
        sequence.joined_at_step = self._step
        self._running[sequence] = None
        heapq.heappush(self._ends, (self._find_end(sequence), next(self._order), sequence))

    def _finish(self) -> None:
        """Let all go whose last token has come."""
        while self._ends and self._ends[0][0] <= self._step:
            end, _, sequence = heapq.heappop(self._ends)
            if sequence in self._running and self._find_end(sequence) == end:
                del self._running[sequence]
                self._context -= sequence.context + end - sequence.joined_at_step
                self._answer(sequence)

    def _answer(self, sequence: Sequence) -> None:
        request, counters, first = sequence.request, self.counters, sequence.first_token_at
        assert first is not None
        self.num_in_flight -= 1
        counters.finished += 1
        counters.prompt_tokens += request.prompt_tokens
        counters.generation_tokens += request.generation_tokens
        pace = None
        if request.generation_tokens > 1:
            pace = (self._agenda.now - first) / (request.generation_tokens - 1)
            counters.observe_output_tokens(pace)
        self._on_answer(Answer(request, first - request.at, pace))
