"""Steps before the first request: they build what is built on first use, and show what a step takes.

An autoscaler that has seen no request of a new service knows from them what a replica can carry: they are of
this model on this accelerator.
"""

import msgspec

from millrace_runtime.engine.scheduler import Scheduler
from millrace_runtime.execution.errors import ModelError
from millrace_runtime.protocol.executor import Executor
from millrace_runtime.protocol.messages import FINISH_ERROR, Generate, NewSequence, StepTiming
from millrace_runtime.protocol.sampling import Sampling
from millrace_runtime.protocol.tokens import pack_tokens
from millrace_runtime.replica.engine_loop import StepClock

SHORT_PROMPT = 4
LONG_PROMPT = 512
LEAST_LONG_PROMPT = 64
"""A shorter one tells nothing of what a token takes beside the step's own time."""
NUM_SEQUENCES = 8
NUM_STEPS = 8
NUM_STEPS_TOGETHER = 24
"""So that the first sequence still runs when the last one's prompt is computed."""
LEAST_SECONDS = 1e-6
"""No step takes less."""
LONGEST_PROMPT_SECONDS = 2.0
"""For a long prompt, were each of its tokens to take as long as a step of one. On a GPU it takes a hundredth
of that."""
LONGEST_PROMPTS_SECONDS = 2.0
"""For those of several sequences, as measured of one."""


def try_steps(scheduler: Scheduler, executor: Executor) -> list[StepTiming]:
    """Return what was measured of a step of one token, one of a prompt, and one of several long sequences.

    Where the model is so slow that this would keep a replica from its requests, nothing is measured, and the
    list is empty. Raises ModelError where the model computes no token: it would fail every request.
    """
    _run(scheduler, executor, SHORT_PROMPT, max_tokens=2)
    lone = _find_usual(_run(scheduler, executor, SHORT_PROMPT, max_tokens=1 + NUM_STEPS))
    if lone is None:
        return []
    affordable = LONGEST_PROMPT_SECONDS / max(lone.seconds, LEAST_SECONDS)
    length = int(min(affordable, LONG_PROMPT, scheduler.max_model_length - 1 - NUM_STEPS_TOGETHER))
    if length < LEAST_LONG_PROMPT:
        return []
    _run(scheduler, executor, length)
    prompts = _run(scheduler, executor, length)
    seconds = max(sum(step.seconds for step in prompts), LEAST_SECONDS)
    number = max(1, int(min(NUM_SEQUENCES, LONGEST_PROMPTS_SECONDS / seconds)))
    together = _run(scheduler, executor, length, num_sequences=number, max_tokens=1 + NUM_STEPS_TOGETHER)
    batch = _find_usual(together)
    return [lone, max(prompts, key=lambda step: step.num_tokens), batch] if batch else []


def _find_usual(steps: list[StepTiming]) -> StepTiming | None:
    """Return the step of median time among the fullest that compute no prompt; None without such steps."""
    decoding = [step for step in steps if step.is_decode_only]
    fullest = max((step.num_sequences for step in decoding), default=0)
    full = [step for step in decoding if step.num_sequences == fullest]
    return sorted(full, key=lambda step: step.seconds)[len(full) // 2] if full else None


def _run(
    scheduler: Scheduler,
    executor: Executor,
    num_prompt: int,
    *,
    max_tokens: int = 1,
    num_sequences: int = 1,
) -> list[StepTiming]:
    """Run sequences of one prompt to their end, and return their steps."""
    length = min(num_prompt, scheduler.max_model_length - 1)
    sequences = [NewSequence(number, Sampling(temperature=0.0)) for number in range(num_sequences)]
    prompt = pack_tokens([0] * length)
    scheduler.add(Generate(sequences=sequences, prompt=prompt, max_tokens=max_tokens, stop_token_ids=[]))
    clock, steps = StepClock(), []
    while scheduler.has_work:
        while (plan := scheduler.schedule()) is not None:
            clock.begin()
            executor.submit(plan)
        committed = scheduler.commit(executor.collect())
        seconds = clock.end(is_more_to_do=scheduler.has_work)
        if committed.timing is not None:
            steps.append(msgspec.structs.replace(committed.timing, seconds=seconds))
        for output in committed.outputs:
            if output.finish_reason == FINISH_ERROR:
                raise ModelError(f"a trial step failed: {output.error}; download the model again")
    scheduler.pop_begun()
    return steps
