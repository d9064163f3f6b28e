"""Trial steps before the first request: they warm up the kernels, and measure the time of a step.

From them the autoscaler knows the capacity of a new service's replica before the first request: they use this
model on this accelerator. Where steps can be recorded, the trial records the sizes that it times: serving
repeats recordings, and without one a step takes longer. So a replica is ready with these sizes.
"""

import random
import time
from collections.abc import Sequence

import msgspec

from millrace_runtime.engine.scheduler import Scheduler
from millrace_runtime.execution.errors import ModelError
from millrace_runtime.protocol.encoding import pack_tokens
from millrace_runtime.protocol.executor import Executor, Record
from millrace_runtime.protocol.messages import FINISH_ERROR, Generate, NewSequence, StepTiming
from millrace_runtime.protocol.sampling import Sampling, build_costly_sampling
from millrace_runtime.protocol.step import StepSize
from millrace_runtime.replica.engine_loop import StepClock
from millrace_runtime.replica.recordings import Recordings

GREEDY = Sampling(temperature=0.0)
SHORTEST_PROMPT = 4
SHORT_PROMPT = 64
"""A shorter prompt does not show the time of a token beside the step's own time."""
LONG_PROMPT = 1024
NUM_SEQUENCES = 32
"""Of 1000 tokens each: reading so many takes a GPU a large part of a step, and is no noise."""
FEW_SEQUENCES = 8
"""Of the first requests. Every step of fewer sequences is served by the recording of this size."""
NUM_PROMPTS = 3
NUM_STEPS = 8
LEAST_SECONDS = 1e-6
"""No step takes less."""
LONGEST_SHORT_PROMPT_SECONDS = 4.0
"""The budget of a short prompt, if each of its tokens took as long as a step of one token. On a GPU a token
takes a sixtieth of this."""
LONGEST_PROMPT_SECONDS = 1.0
"""The budget of a long prompt, if each of its tokens took as long as a token of a short prompt."""
LEAST_BATCH_SECONDS = 0.2
"""The budget of the prompts of several sequences, by the time of one. With 0.5 a replica of the shipped model
started 0.9 s later on two cores than without any trial, and with this 0.45 s."""
BATCH_PER_LOADING = 0.05
"""The same as a share of the loading time, if that is more: after a minute, three seconds."""


def try_steps(
    scheduler: Scheduler, executor: Executor, recordings: Recordings, loading_seconds: float = 0.0
) -> list[StepTiming]:
    """Return the measured steps: of one token, of a prompt, and of several long sequences.

    It notes in `recordings` what it has recorded. `loading_seconds` is the time that the start has taken
    until now. For a model that is so slow that the trial would delay requests, the list is empty. Raises
    ModelError if the model computes no token, because it would fail every request.
    """
    steps = _Trial(scheduler, executor, recordings, loading_seconds).measure()
    scheduler.forget_prefixes()  # no request has these prompts
    return steps


def is_affordable(lone_seconds: float) -> bool:
    """Whether the trial may compute a short prompt, by the time of a step of one token."""
    return SHORT_PROMPT * lone_seconds <= LONGEST_SHORT_PROMPT_SECONDS


def find_length(short_prompt_seconds: float) -> int:
    """Return the tokens of a long prompt; fewer than a short one has, if even that took too long."""
    per_token = max(short_prompt_seconds, LEAST_SECONDS) / SHORT_PROMPT
    return int(min(LONGEST_PROMPT_SECONDS / per_token, LONG_PROMPT))


def find_number(prompt_seconds: float, loading_seconds: float) -> int:
    """Return the number of sequences with such prompts that the trial computes together."""
    budget = max(BATCH_PER_LOADING * loading_seconds, LEAST_BATCH_SECONDS)
    return max(1, min(int(budget / max(prompt_seconds, LEAST_SECONDS)), NUM_SEQUENCES))


class _Trial:
    def __init__(
        self, scheduler: Scheduler, executor: Executor, recordings: Recordings, loading_seconds: float
    ) -> None:
        self._recordings, self._loading_seconds = recordings, loading_seconds
        self._scheduler = scheduler
        self._executor = executor
        self._rng = random.Random(0)  # noqa: S311  equal prompts could share work that others can't

    def measure(self) -> list[StepTiming]:
        costly = build_costly_sampling(self._executor.limits.vocabulary_size)
        self._run(1, SHORTEST_PROMPT, max_tokens=2, sampling=costly)  # compiles what the first use compiles
        self._record(StepSize(min(FEW_SEQUENCES, self._executor.limits.num_slots)), StepSize(1))
        first = self._decode_alone(1)
        if first is None or not is_affordable(first.seconds):
            return []
        lone, length = self._decode_alone(NUM_STEPS), self._find_length()
        if lone is None or length < SHORT_PROMPT:
            return []
        self._record(StepSize(min(length, self._executor.limits.max_batched_tokens), is_mixed=True))
        self._run(1, length)
        runs = [self._run(1, length) for _ in range(NUM_PROMPTS)]
        seconds = sorted(sum(step.seconds for step in steps) for steps in runs)[NUM_PROMPTS // 2]
        largest = sorted((max(steps, key=_count_tokens) for steps in runs), key=lambda step: step.seconds)
        batch = self._decode_together(find_number(seconds, self._loading_seconds), length)
        return [lone, largest[NUM_PROMPTS // 2], batch] if batch else []

    def _find_length(self) -> int:
        """Return the tokens that a long prompt may have."""
        longest = self._scheduler.max_model_length // 2
        if longest < SHORT_PROMPT:
            return 0
        self._run(1, SHORT_PROMPT)
        seconds = sum(step.seconds for step in self._run(1, SHORT_PROMPT))
        return min(find_length(seconds), longest)

    def _record(self, *steps: StepSize) -> None:
        """Record the sizes that will serve such steps."""
        for step in steps:
            if (size := self._recordings.find_missing(step)) is not None:
                self._executor.control(Record(size))
                self._recordings.note(size, time.monotonic())

    def _decode_alone(self, num_steps: int) -> StepTiming | None:
        return _find_usual(self._run(1, SHORTEST_PROMPT, max_tokens=1 + num_steps))

    def _decode_together(self, num_sequences: int, length: int) -> StepTiming | None:
        """Return a step of several sequences. The first one still runs during the prompt of the last one."""
        number = min(num_sequences, self._executor.limits.num_slots)
        self._record(StepSize(number))
        num_chunks = 2 * number * length // self._executor.limits.max_batched_tokens
        return _find_usual(self._run(number, length, max_tokens=1 + num_chunks + NUM_STEPS))

    def _run(
        self, num_sequences: int, num_prompt: int, max_tokens: int = 1, sampling: Sampling = GREEDY
    ) -> list[StepTiming]:
        """Run sequences to their end, and return their steps."""
        scheduler, executor = self._scheduler, self._executor
        for number in range(num_sequences):
            size = min(num_prompt, scheduler.max_model_length - 1)
            scheduler.add(self._draw(NewSequence(number, sampling), size, max_tokens))
        clock, steps = StepClock(), []
        while scheduler.has_work:
            while (plan := scheduler.schedule(is_trial=True)) is not None:
                clock.begin()
                executor.submit(plan)
            committed = scheduler.commit(executor.collect())
            seconds = clock.end(is_more_to_do=scheduler.has_work)
            scheduler.observe(committed.work, seconds)
            if committed.timing is not None:
                steps.append(msgspec.structs.replace(committed.timing, seconds=seconds))
            for output in committed.outputs:
                if output.finish_reason == FINISH_ERROR:
                    raise ModelError(f"a trial step failed: {output.error}; download the model again")
        scheduler.pop_begun()
        return steps

    def _draw(self, sequence: NewSequence, num_prompt: int, max_tokens: int) -> Generate:
        tokens = self._rng.choices(range(self._executor.limits.vocabulary_size), k=num_prompt)
        return Generate(
            sequences=[sequence],
            prompt=pack_tokens(tokens),
            max_tokens=max_tokens,
            stop_token_ids=[],
            salt=self._rng.randbytes(8),  # two short prompts may be equal
        )


def _count_tokens(step: StepTiming) -> int:
    return step.num_tokens


def _find_usual(steps: Sequence[StepTiming]) -> StepTiming | None:
    """Return a step with the median time of the fullest decode-only steps; None without such steps."""
    decoding = [step for step in steps if step.is_decode_only]
    fullest = max((step.num_sequences for step in decoding), default=0)
    full = [step for step in decoding if step.num_sequences == fullest]
    if not full:
        return None
    middle = len(full) // 2
    return msgspec.structs.replace(full[middle], seconds=sorted(step.seconds for step in full)[middle])
