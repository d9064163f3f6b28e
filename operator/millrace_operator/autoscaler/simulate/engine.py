"""One replica's continuous batching in virtual time: events when the batch changes, closed forms between.

While no sequence joins or leaves, each step is longer than the one before by the keys that it adds:
k steps of n sequences take k·T + γ·n·k·(k - 1)/2. Prompts are computed in chunks, a step at a time. A
sequence that no longer fits in the KV cache waits again, and its tokens are computed again.
"""

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable
from copy import copy
from typing import NamedTuple

from millrace_operator.autoscaler.decide.policy import LatencyMetric
from millrace_operator.autoscaler.simulate.agenda import Agenda
from millrace_operator.autoscaler.simulate.batch import Chunk, Counters, Sample, Sequence, Stretch
from millrace_operator.autoscaler.simulate.hardware import Guesses, Hardware, PrefixCache, try_steps
from millrace_operator.autoscaler.simulate.load import Request

STEPS_WHILE_COLD = 16
"""The longest stretch of a cold replica: all its steps are slowed down alike."""


class Answer(NamedTuple):
    """A finished request, with its latencies in seconds."""

    request: Request
    time_to_first_token: float
    time_per_output_token: float | None
    """None of an answer of one token."""
    queue_time: float
    end_to_end_latency: float

    def find_latency(self, metric: LatencyMetric) -> float | None:
        """Return the latency of an objective's metric; None if the answer has none."""
        match metric:
            case "TimeToFirstToken":
                return self.time_to_first_token
            case "TimePerOutputToken":
                return self.time_per_output_token
            case "QueueTime":
                return self.queue_time
            case "EndToEndLatency":
                return self.end_to_end_latency


class Engine:
    """One replica that serves. It passes each answer to `on_answer`."""

    def __init__(
        self,
        agenda: Agenda,
        hardware: Hardware,
        rng: random.Random,
        on_answer: Callable[[Answer], None],
        *,
        is_warm: bool = True,
    ) -> None:
        self.counters = Counters()
        self.num_in_flight = 0
        self.prefix_cache = PrefixCache(hardware.prefix_hits, rng)
        self._agenda = agenda
        self._hardware = hardware
        self._rng = rng
        self._on_answer = on_answer
        self._is_warm = is_warm
        self._speed = math.exp(rng.gauss(0, hardware.unevenness))
        self.trial_steps = try_steps(hardware, self._speed, is_warm=is_warm)
        self._waiting: deque[Sequence] = deque()
        self._prefilling: list[Sequence] = []
        self._running: dict[Sequence, None] = {}
        """In the order in which they joined."""
        self._ends: list[tuple[int, int, Sequence]] = []
        """By the step after which a sequence ends. The entry of a preempted one stays until then."""
        self._order = itertools.count()
        self._step = 0
        self._context = 0
        """Tokens in the cache of running sequences; `_prefilled` has those of prompts under way."""
        self._prefilled = 0
        self._stretch: Stretch | None = None
        self._ends_at = math.inf

    def submit(self, request: Request) -> None:
        """Take a request. Raises ValueError if it is longer than the KV cache."""
        if request.prompt_tokens + request.generation_tokens > self._hardware.kv_tokens:
            raise ValueError(f"{request} does not fit in a KV cache of {self._hardware.kv_tokens} tokens")
        self.counters.received += 1
        self.num_in_flight += 1
        self._waiting.append(Sequence(request, request.generation_tokens, request.prompt_tokens))
        if self._stretch is None:
            self._begin()
        elif self._stretch.num_steps > 1 and self._has_room():
            self._cut(self._stretch)

    def stop(self) -> int:
        """Stop at once; return the number of lost requests."""
        lost, self.num_in_flight = self.num_in_flight, 0
        self._stretch, self._ends_at = None, math.inf
        return lost

    def sample(self) -> Sample:
        """Return the sample of a scrape now, with the steps that have ended since the batch changed."""
        counters, context = self.counters, self._context + self._prefilled
        stretch = self._stretch
        if stretch is not None and (done := stretch.count_done(self._agenda.now - stretch.began)) > 0:
            counters = copy(counters)
            self._count_steps_done(counters, stretch, done)
            context += done * len(self._running)
        running, usage = len(self._running) + len(self._prefilling), context / self._hardware.kv_tokens
        return counters.sample(self._agenda.now, running, len(self._waiting), min(usage, 1.0))

    def _has_room(self) -> bool:
        """Whether the first waiting sequence may join the batch."""
        if not self._waiting or len(self._running) + len(self._prefilling) >= self._hardware.max_sequences:
            return False
        used = self._context + self._prefilled + sum(sequence.uncomputed for sequence in self._prefilling)
        free = self._hardware.kv_tokens - used - len(self._running)
        return self._waiting[0].uncomputed <= free or not (self._running or self._prefilling)

    def _begin(self) -> None:
        """Begin the next stretch, if there is work."""
        self._preempt()
        chunks = self._take_chunks()
        num_running = len(self._running)
        if not chunks and not num_running:
            self._stretch = None
            return
        tokens, num_steps, guesses = float(num_running), 1, Guesses()
        if chunks:
            tokens += sum(size for _, size in chunks)
        else:
            num_steps, guesses = self._count_steps(), self._hardware.draft(num_running)
            tokens += guesses.drafted * num_running
        slowness = 1.0
        if not self._is_warm:
            num_steps = min(num_steps, STEPS_WHILE_COLD)
            slowness = self._find_slowness()
        written = guesses.written
        stretch = self._stretch = Stretch(
            began=self._agenda.now,
            num_steps=num_steps,
            first_seconds=self._hardware.step_seconds(tokens, self._context + self._prefilled) / written,
            growth_seconds=self._hardware.context_seconds * num_running / written,
            factor=slowness
            * self._speed
            * math.exp(self._rng.gauss(0, self._hardware.noise / math.sqrt(num_steps))),
            chunks=chunks,
            guesses=guesses,
        )
        stretch.stall_seconds = self._draw_stalls(stretch.seconds(num_steps))
        self._await_end(stretch)

    def _find_slowness(self) -> float:
        """Return the factor of a step's time while the replica warms up."""
        slowness = self._hardware.slowness(self.counters.step_seconds)
        self._is_warm = slowness == 1.0
        return slowness

    def _draw_stalls(self, busy_seconds: float) -> float:
        """Return the seconds of all stalls in a stretch, by a Poisson process."""
        rate = self._hardware.stalls_per_hour / 3600
        if not rate or (at := self._rng.expovariate(rate)) >= busy_seconds:
            return 0.0
        total = 0.0
        while at < busy_seconds:
            total += self._rng.expovariate(1 / self._hardware.stall_seconds)
            at += self._rng.expovariate(rate)
        return total

    def _preempt(self) -> None:
        """Preempt the newest sequences until the next step's keys fit."""
        while self._context + self._prefilled + len(self._running) > self._hardware.kv_tokens:
            sequence, _ = self._running.popitem()
            done = self._step - sequence.joined_at_step
            self._context -= sequence.context + done
            sequence.tokens_left -= done
            sequence.uncomputed, sequence.context = sequence.context + done, 0
            self._waiting.appendleft(sequence)

    def _take_chunks(self) -> list[Chunk]:
        """Return the prompt tokens of the next step, after one token of each running sequence."""
        budget = self._hardware.max_batched_tokens - len(self._running)
        chunks = []
        for sequence in self._prefilling:
            chunks.append(Chunk(sequence, size := min(sequence.uncomputed, budget)))
            budget -= size
        while budget > 0 and self._has_room():
            sequence = self._waiting.popleft()
            self._note_begun(sequence)
            self._prefilling.append(sequence)
            chunks.append(Chunk(sequence, size := min(sequence.uncomputed, budget)))
            budget -= size
        return [chunk for chunk in chunks if chunk.size > 0]

    def _note_begun(self, sequence: Sequence) -> None:
        """Record the first step of a sequence, and use the cached tokens, which are held once more."""
        if sequence.begun_at is None:
            sequence.begun_at = self._agenda.now
            self.counters.observe_queue_time(self._agenda.now - sequence.request.at)
            prompt_tokens = sequence.request.prompt_tokens
            self.counters.count_prompt(prompt_tokens, found := self.prefix_cache.look_up(prompt_tokens))
            sequence.uncomputed -= found
            sequence.context += found
            self._prefilled += found

    def _count_steps(self) -> int:
        """Return the number of steps until a sequence ends or the KV cache is full."""
        while self._ends[0][2] not in self._running or self._find_end(self._ends[0][2]) != self._ends[0][0]:
            heapq.heappop(self._ends)  # of a preempted sequence
        until_end = self._ends[0][0] - self._step
        free = self._hardware.kv_tokens - self._context - self._prefilled
        return max(1, min(until_end, free // len(self._running)))

    @staticmethod
    def _find_end(sequence: Sequence) -> int:
        return sequence.joined_at_step + sequence.tokens_left

    def _await_end(self, stretch: Stretch) -> None:
        stretch.total_seconds = stretch.seconds(stretch.num_steps)
        self._ends_at = stretch.began + stretch.total_seconds
        self._agenda.add(self._ends_at, self._end_due)

    def _end_due(self) -> None:
        """End the stretch, unless it was cut and has ended before."""
        if self._agenda.now == self._ends_at and self._stretch is not None:
            self._end(self._stretch)

    def _cut(self, stretch: Stretch) -> None:
        """End a stretch with the running step, so that a sequence can join."""
        num_steps = stretch.count_begun(self._agenda.now - stretch.began)
        if num_steps < stretch.num_steps:
            stretch.num_steps = num_steps
            self._await_end(stretch)

    def _end(self, stretch: Stretch) -> None:
        self._count(stretch)
        self._step += stretch.num_steps
        self._context += stretch.num_steps * len(self._running)
        for sequence, size in stretch.chunks:
            self._note_chunk(sequence, size)
        self._finish()
        self._begin()

    def _count(self, stretch: Stretch) -> None:
        self._count_steps_done(self.counters, stretch, stretch.num_steps)
        if stretch.chunks:
            self.counters.step_sequences += len(stretch.chunks)
            self.counters.step_tokens += sum(size for _, size in stretch.chunks)

    def _count_steps_done(self, counters: Counters, stretch: Stretch, tokens: int) -> None:
        """Count the first steps of a stretch: each sequence of the present batch got so many tokens."""
        batch, context = len(self._running), self._context + self._prefilled
        counters.count_steps(batch, context, tokens, stretch.seconds(tokens), stretch.guesses)

    def _note_chunk(self, sequence: Sequence, size: int) -> None:
        """Record computed prompt tokens; the last of them give the first answer token."""
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
        """Finish the sequences whose last token has come."""
        while self._ends and self._ends[0][0] <= self._step:
            end, _, sequence = heapq.heappop(self._ends)
            if sequence in self._running and self._find_end(sequence) == end:
                del self._running[sequence]
                self._context -= sequence.context + end - sequence.joined_at_step
                self._answer(sequence)

    def _answer(self, sequence: Sequence) -> None:
        request, counters, now = sequence.request, self.counters, self._agenda.now
        begun, first = sequence.begun_at, sequence.first_token_at
        assert begun is not None
        assert first is not None
        self.num_in_flight -= 1
        counters.finished += 1
        counters.prompt_tokens += request.prompt_tokens
        counters.generation_tokens += request.generation_tokens
        pace = None
        if request.generation_tokens > 1:
            pace = (now - first) / (request.generation_tokens - 1)
            counters.observe_output_tokens(pace)
        counters.observe_whole_request(now - request.at, request.generation_tokens)
        self._on_answer(Answer(request, first - request.at, pace, begun - request.at, now - request.at))
