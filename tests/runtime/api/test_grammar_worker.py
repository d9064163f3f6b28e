"""The grammar worker's process, with its limits."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path

import pytest

from millrace_runtime.api.errors import UnavailableError
from millrace_runtime.api.settings import GRAMMAR_MODULE
from millrace_runtime.api.workers.grammar_worker import GrammarWorker
from millrace_runtime.grammar.errors import GrammarError
from millrace_runtime.grammar.source import GrammarKind, GrammarSource
from millrace_runtime.protocol.messages import Grammar
from testing.polling import wait_until_async


@pytest.fixture
async def worker(model_path: Path) -> AsyncIterator[GrammarWorker]:
    worker = GrammarWorker(model_path, GRAMMAR_MODULE, (0.05, 100))
    yield worker
    await worker.close()


def prove(worker: GrammarWorker, multiple: int = 2) -> Coroutine[None, None, Grammar]:
    schema = f'{{"type": "integer", "multipleOf": {multiple}}}'
    return worker.prove(GrammarSource(GrammarKind.SCHEMA, schema, "guided_json"))


def pid_of(worker: GrammarWorker) -> int:
    assert worker._starting is not None
    return worker._starting.result()._process.pid


def num_threads_of(worker: GrammarWorker) -> int:
    return len(list(Path(f"/proc/{pid_of(worker)}/task").iterdir()))


def forks_of(worker: GrammarWorker) -> list[int]:
    pid = pid_of(worker)
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def test_a_proof_says_what_a_grammar_takes_and_one_that_takes_too_much_is_refused(
    worker: GrammarWorker,
) -> None:
    small, large = await asyncio.gather(prove(worker, 7), prove(worker, 6007))
    assert 0 < small.num_bytes < large.num_bytes < 8 << 20
    assert 0 < small.seconds < large.seconds
    with pytest.raises(GrammarError, match="bytes of memory, more than 8388608: make it smaller"):
        await prove(worker, 29_989)


async def test_a_proof_ends_with_its_last_caller_and_is_shared_before(worker: GrammarWorker) -> None:
    await prove(worker)
    assert num_threads_of(worker) == 1  # a fork would lose others
    tasks = [asyncio.create_task(prove(worker, 999_983)) for _ in range(2)]
    await wait_until_async("a fork", lambda: forks_of(worker))
    tasks[0].cancel()
    assert await prove(worker, 3) != await prove(worker)
    assert len(forks_of(worker)) == 1
    tasks[1].cancel()
    await wait_until_async("no fork", lambda: not forks_of(worker))
    assert await prove(worker, 5)


async def test_a_fork_that_ends_fails_its_proof_and_the_worker_all_of_them(worker: GrammarWorker) -> None:
    await prove(worker)
    for kill, error in (
        (lambda: forks_of(worker)[0], GrammarError),
        (lambda: pid_of(worker), UnavailableError),
    ):
        proof = asyncio.create_task(prove(worker, 999_979 if error is GrammarError else 999_983))
        await wait_until_async("a fork", lambda: forks_of(worker))
        os.kill(kill(), signal.SIGKILL)
        with pytest.raises(error):
            await proof
        assert await prove(worker)


async def test_a_grammar_that_comes_while_the_process_ends_starts_another(worker: GrammarWorker) -> None:
    await prove(worker)
    assert worker._starting is not None
    process = worker._starting.result()
    may_end, wait = asyncio.Event(), process._process.wait
    process._process.wait = lambda: asyncio.gather(may_end.wait(), wait())  # type: ignore[assignment]
    os.kill(pid_of(worker), signal.SIGKILL)
    await wait_until_async("the end of its answers", process._writer.is_closing)
    async with asyncio.timeout(30):
        assert await prove(worker, 3)
    may_end.set()


async def test_a_grammar_that_needs_a_deep_stack_is_refused(worker: GrammarWorker) -> None:
    chain = "\n".join(f'T{number}: ("a" T{number + 1})? /[b-z]/' for number in range(600))
    source = GrammarSource(GrammarKind.GRAMMAR, f"start: T0\n{chain}\nT600: /x/", "guided_grammar")
    with pytest.raises(GrammarError, match="breaks the compiler"):
        await worker.prove(source)
