import asyncio
import dataclasses
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from millrace_runtime.chat.errors import (
    TemplateError,
    TextJobFailedError,
    TextMemoryError,
    TextTimeoutError,
    TextWorkerDiedError,
)
from millrace_runtime.chat.jobs import EncodeTexts, RenderChat
from millrace_runtime.chat.worker import TextLimits, TextWorker
from tests.runtime.text_model import END_TOKEN, build_byte_level, write_model

LIMITS = TextLimits(job_seconds=1.0, memory_bytes=1 << 30, start_seconds=30, retry_seconds=(0.05, 0.1))


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[TextWorker]:
    worker = TextWorker(write_model(tmp_path, build_byte_level()), LIMITS)
    await worker.start()
    yield worker
    await worker.close()


def say(content: str, role: str = "user") -> RenderChat:
    return RenderChat([{"role": role, "content": content}])


async def test_jobs_are_answered_and_refusals_told(worker: TextWorker) -> None:
    both, chat = await asyncio.gather(worker.run(EncodeTexts(["the", "hi"])), worker.run(say("hi")))
    assert [len(tokens) for tokens in both] == [1, 2]
    native = build_byte_level()
    assert native.decode(chat[0]) == "user: hi\nassistant:"
    with pytest.raises(TemplateError, match="no villains"):
        await worker.run(say("hi", "villain"))
    assert await worker.run(EncodeTexts(["the"])) == both[:1]


async def test_a_job_without_end_or_beyond_memory_fails_alone(worker: TextWorker) -> None:
    bad, good = await asyncio.gather(
        worker.run(say("loop")), worker.run(EncodeTexts(["the"])), return_exceptions=True
    )
    assert isinstance(bad, TextTimeoutError)
    assert "longer than 1 s" in str(bad)
    assert isinstance(good, list)
    with pytest.raises(TextMemoryError):
        await worker.run(say("hoard"))
    assert await worker.run(EncodeTexts(["the"])) == good


async def test_a_killed_worker_is_replaced_and_a_cancelled_caller_harms_nobody(worker: TextWorker) -> None:
    leaving = asyncio.create_task(worker.run(say("loop")))
    await asyncio.sleep(0.05)
    leaving.cancel()
    behind = asyncio.create_task(worker.run(EncodeTexts(["the"])))
    assert len(await behind) == 1
    assert worker._connection is not None
    worker._connection._process.kill()
    await worker._connection._process.wait()
    with pytest.raises(TextWorkerDiedError):
        await worker.run(EncodeTexts(["the"]))
    assert len(await worker.run(EncodeTexts(["the"]))) == 1


async def test_a_first_start_that_fails_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker = TextWorker(tmp_path, dataclasses.replace(LIMITS, retry_seconds=(0.05, 30.0)))
    starting = asyncio.create_task(worker.start())
    async with asyncio.timeout(20):
        while "again in 0.05 s" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        write_model(tmp_path, build_byte_level())
        await starting
    assert len(await worker.run(EncodeTexts(["the"]))) == 1
    await worker.close()


async def test_a_worker_that_never_starts_says_how_often_it_was_tried(tmp_path: Path) -> None:
    with pytest.raises(TextWorkerDiedError, match="does not start, tried 3 times"):
        await TextWorker(tmp_path, LIMITS).start()


def refuse_words() -> tokenizers.Tokenizer:
    """Raises Exception for every word that it does not know, and it knows none."""
    native = tokenizers.Tokenizer(models.WordLevel({"-": 0}))
    native.add_special_tokens([END_TOKEN])
    return native


def panic_on_words() -> tokenizers.Tokenizer:
    """The native library panics, which is no Exception, at anything but special tokens."""
    native = build_byte_level()
    native.pre_tokenizer = pre_tokenizers.FixedLength(length=0)
    return native


@pytest.mark.parametrize(
    ("build", "said"), [(refuse_words, r"Missing \[UNK\] token"), (panic_on_words, "chunk size")]
)
async def test_a_tokenizer_that_fails_fails_one_job(
    tmp_path: Path, build: Callable[[], tokenizers.Tokenizer], said: str
) -> None:
    worker = TextWorker(write_model(tmp_path, build()), LIMITS)
    await worker.start()
    assert worker._connection is not None
    first_pid = worker._connection._process.pid
    bad, good = await asyncio.gather(
        worker.run(EncodeTexts(["the"])), worker.run(EncodeTexts([END_TOKEN])), return_exceptions=True
    )
    assert isinstance(bad, TextJobFailedError)
    assert re.search(said, str(bad))
    assert isinstance(good, list)
    assert len(good[0]) == 1
    assert worker._connection._process.pid == first_pid
    await worker.close()


async def test_closing_waits_for_a_worker_that_is_just_starting(worker: TextWorker) -> None:
    with pytest.raises(TextTimeoutError):
        await worker.run(say("loop"))
    await asyncio.sleep(0)
    assert any(not task.done() for task in worker._tasks)  # another is being started
    starting = set(worker._tasks)
    await worker.close()
    assert all(task.done() for task in starting)
    assert worker._connection is None
