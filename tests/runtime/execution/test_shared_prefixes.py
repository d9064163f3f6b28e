"""Prefixes that sequences share, where several workers hold the model."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from millrace_runtime.engine.scheduler import Scheduler
from millrace_runtime.protocol.encoding import pack_tokens
from millrace_runtime.protocol.executor import Executor, Sleep, Wake
from millrace_runtime.protocol.messages import Generate, NewSequence
from millrace_runtime.protocol.sampling import Sampling
from tests.runtime.execution.tape import prompt

SHARED = prompt(40, 0)
PROMPTS = [[*SHARED[:length], *prompt(3, length)] for length in (40, 33, 40, 17)]


def serve(scheduler: Scheduler, executor: Executor, prompts: Sequence[list[int]]) -> list[list[int]]:
    """Run requests one after the other; return their texts."""
    texts = []
    for number, tokens in enumerate(prompts):
        sampling = Sampling(temperature=0.9, seed=len(tokens))
        scheduler.add(
            Generate(
                sequences=[NewSequence(number, sampling)],
                prompt=pack_tokens(tokens),
                max_tokens=6,
                stop_token_ids=[],
            )
        )
        text: list[int] = []
        while scheduler.has_work:
            while (plan := scheduler.schedule()) is not None:
                executor.submit(plan)
            for output in scheduler.commit(executor.collect()).outputs:
                assert output.error is None
                text += output.tokens
        texts.append(text)
    return texts


def test_workers_find_a_prefix_and_forget_it_before_a_sleep(
    make_model: Callable[..., Path], make_driver: Callable[..., Any]
) -> None:
    path = make_model()
    alone = make_driver(path).executor
    expected = [serve(Scheduler(alone.limits), alone, [tokens])[0] for tokens in PROMPTS]
    executor = make_driver(path, 2).executor
    scheduler = Scheduler(executor.limits)
    for _ in range(2):
        assert serve(scheduler, executor, PROMPTS) == expected
        assert scheduler.stats().num_prefix_hits == 32 + 32 + 16
        scheduler.forget_prefixes()
        executor.control(Sleep())
        executor.control(Wake())
