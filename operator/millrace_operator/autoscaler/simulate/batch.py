"""A simulated replica's batch: its sequences, the steps between two changes of it, and its counters."""

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from millrace_operator.autoscaler.simulate.hardware import Guesses
from millrace_operator.autoscaler.simulate.load import Request
from millrace_runtime.contract import ANSWER_BUCKETS, LATENCY_BUCKETS, REQUEST_BUCKETS, TOKEN_BUCKETS


@dataclass(slots=True, eq=False)
class Sequence:
    """A request at a replica."""

    request: Request
    tokens_left: int
    """Tokens to generate still."""
    uncomputed: int
    """Tokens of its prompt whose keys are not in the cache yet."""
    context: int = 0
    """Tokens in the cache when it last joined the batch, or so far while its prompt is computed."""
    joined_at_step: int = 0
    begun_at: float | None = None
    """The beginning of the first step that computes a token of it."""
    first_token_at: float | None = None


class Chunk(NamedTuple):
    """Tokens of a prompt that one step computes."""

    sequence: Sequence
    size: int


@dataclass(slots=True)
class Stretch:
    """Steps between two changes of the batch."""

    began: float
    num_steps: int
    """Tokens of each sequence: with drafts that come true it takes fewer real steps."""
    first_seconds: float
    """Of the first step, without noise."""
    growth_seconds: float
    """Each step is longer than the one before by so much."""
    factor: float
    """Noise, the replica's own speed, and its warm-up."""
    chunks: list[Chunk]
    """Prompt tokens to compute; with any, the stretch is one step."""
    guesses: Guesses
    stall_seconds: float = 0.0
    total_seconds: float = 0.0

    def seconds(self, num_steps: int) -> float:
        """Return the seconds of its first steps."""
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

    def count_done(self, elapsed: float) -> int:
        """Return how many steps have ended after some seconds."""
        return min(self.count_begun(elapsed) - 1, self.num_steps)


class Sample(NamedTuple):
    """One scrape of one replica."""

    at: float
    running: int
    waiting: int
    kv_usage: float
    counters: tuple[float, ...]
    """As `Counters.NAMES` names them."""
    first_tokens: tuple[float, ...]
    """Sequences by bucket of their time to first token, not cumulated; the last one is +Inf."""
    output_tokens: tuple[float, ...]
    """Sequences by bucket of their time per output token."""
    queue_times: tuple[float, ...]
    """Sequences by bucket of their time in the queue."""
    whole_requests: tuple[float, ...]
    """Sequences by bucket of their time from arrival to the last token."""
    answer_lengths: tuple[float, ...]
    """Sequences by bucket of the tokens of their answer."""


@dataclass
class Counters:
    """A replica's counters since it began."""

    received: int = 0
    steps: float = 0.0
    step_seconds: float = 0.0
    step_sequences: float = 0.0
    step_tokens: float = 0.0
    step_context: float = 0.0
    step_looked_up: float = 0.0
    step_found: float = 0.0
    step_drafted: float = 0.0
    step_accepted: float = 0.0
    finished: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    first_tokens: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BUCKETS) + 1))
    output_tokens: list[int] = field(default_factory=lambda: [0] * (len(TOKEN_BUCKETS) + 1))
    queue_times: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BUCKETS) + 1))
    whole_requests: list[int] = field(default_factory=lambda: [0] * (len(REQUEST_BUCKETS) + 1))
    answer_lengths: list[int] = field(default_factory=lambda: [0] * (len(ANSWER_BUCKETS) + 1))

    NAMES = (
        "received", "steps", "step_seconds", "step_sequences", "step_tokens", "step_context",
        "step_looked_up", "step_found", "step_drafted", "step_accepted",
        "finished", "prompt_tokens", "generation_tokens",
    )  # fmt: skip
    _values = attrgetter(*NAMES)

    def count_steps(self, batch: int, context: int, tokens: int, seconds: float, guesses: Guesses) -> None:
        """Count the steps in which each sequence of a batch got so many tokens; `context` is their first."""
        steps = tokens / guesses.written
        self.steps += steps
        self.step_seconds += seconds
        self.step_sequences += steps * batch
        self.step_tokens += steps * batch * (1 + guesses.drafted)
        self.step_context += steps * (context + batch * (tokens - 1) / 2)
        self.step_drafted += steps * batch * guesses.drafted
        self.step_accepted += steps * batch * guesses.accepted

    def count_prompt(self, tokens: int, found: int) -> None:
        """Count a prompt that was looked up in the prefix cache."""
        self.step_looked_up += tokens
        self.step_found += found

    def observe_first_token(self, seconds: float) -> None:
        """Count a sequence's first token."""
        self.first_tokens[bisect_left(LATENCY_BUCKETS, seconds)] += 1

    def observe_output_tokens(self, seconds: float) -> None:
        """Count a finished sequence's mean time per output token."""
        self.output_tokens[bisect_left(TOKEN_BUCKETS, seconds)] += 1

    def observe_queue_time(self, seconds: float) -> None:
        """Count the wait of a sequence that has its first step now."""
        self.queue_times[bisect_left(LATENCY_BUCKETS, seconds)] += 1

    def observe_whole_request(self, seconds: float, generation_tokens: int) -> None:
        """Count a finished sequence's time from arrival on, and how long its answer is."""
        self.whole_requests[bisect_left(REQUEST_BUCKETS, seconds)] += 1
        self.answer_lengths[bisect_left(ANSWER_BUCKETS, generation_tokens)] += 1

    def sample(self, at: float, running: int, waiting: int, kv_usage: float) -> Sample:
        """Return the sample of a scrape now."""
        return Sample(
            at=at,
            running=running,
            waiting=waiting,
            kv_usage=kv_usage,
            counters=self._values(self),
            first_tokens=tuple(self.first_tokens),
            output_tokens=tuple(self.output_tokens),
            queue_times=tuple(self.queue_times),
            whole_requests=tuple(self.whole_requests),
            answer_lengths=tuple(self.answer_lengths),
        )
