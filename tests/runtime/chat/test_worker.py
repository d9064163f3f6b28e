import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millrace_runtime.chat.errors import (
    TemplateError,
    TextMemoryError,
    TextTimeoutError,
    TextWorkerDiedError,
)
from millrace_runtime.chat.jobs import EncodeTexts, RenderChat
from millrace_runtime.chat.worker import TextLimits, TextWorker
from tests.runtime.text_model import build_byte_level, write_model

LIMITS = TextLimits(job_seconds=1.0, memory_bytes=1 << 30, start_seconds=30)


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


async def test_a_folder_without_a_tokenizer_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(TextWorkerDiedError, match="does not start"):
        await TextWorker(tmp_path, LIMITS).start()
