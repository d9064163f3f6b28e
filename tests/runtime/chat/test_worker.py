import asyncio
import contextlib
import dataclasses
import os
import re
import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TextIO

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from millrace_runtime.chat.errors import (
    BodyRefusedError,
    NoTextWorkerError,
    TextJobFailedError,
    TextMemoryError,
    TextTimeoutError,
    TextWorkerDiedError,
)
from millrace_runtime.chat.jobs import EncodeTexts, RenderChat, WorkerReady
from millrace_runtime.chat.text_limits import TextLimits
from millrace_runtime.chat.worker import SMALL_BYTES, TextWorker
from millrace_runtime.chat.worker_process import WorkerProcess
from millrace_runtime.protocol.encoding import encode_frame
from testing.polling import wait_until_async
from testing.text_model import END_TOKEN, build_byte_level, write_model

TEXT_PROCESS = "millrace_runtime.chat.text_process"
LIMITS = TextLimits(
    job_seconds=1.0,
    memory_bytes=1 << 30,
    num_threads=3,
    start_seconds=30,
    proof_seconds=0,
    retry_seconds=(0.05, 0.1),
)


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[TextWorker]:
    worker = TextWorker(write_model(tmp_path, build_byte_level()), LIMITS, TEXT_PROCESS)
    await worker.start()
    yield worker
    await worker.close()


def say(content: str, role: str = "user") -> RenderChat:
    return RenderChat([{"role": role, "content": content}])


async def test_jobs_are_answered_or_refused(worker: TextWorker) -> None:
    both, chat = await asyncio.gather(worker.run(EncodeTexts(["the", "hi"])), worker.run(say("hi")))
    assert [len(tokens) for tokens in both] == [1, 2]
    native = build_byte_level()
    assert native.decode(chat[0]) == "user: hi\nassistant:"
    with pytest.raises(BodyRefusedError, match="no villains"):
        await worker.run(say("hi", "villain"))
    assert await worker.run(EncodeTexts(["the"])) == both[:1]


async def test_a_text_that_cannot_fit_is_refused_untokenised(worker: TextWorker) -> None:
    job = EncodeTexts(["the", "the " * 500_000])
    with pytest.raises(BodyRefusedError):
        await worker.run(job, max_prompt_tokens=9)
    process = large_process_of(worker)
    before = cpu_seconds(process.pid)
    with pytest.raises(
        BodyRefusedError, match="has at least 392858 tokens and the model's limit is 10: "
    ) as refused:
        await worker.run(job, max_prompt_tokens=10)
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(BodyRefusedError, match="has at least 91 tokens"):
        await worker.run(say("x" * 80), max_prompt_tokens=10)
    assert cpu_seconds(process.pid) - before < 0.5  # tokenised it takes several seconds
    assert len((await worker.run(EncodeTexts([END_TOKEN * 10]), max_prompt_tokens=10))[0]) == 10


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


LINES = "a\n"
"""What takes the most memory for its bytes: a new piece with each letter."""


async def test_a_text_that_memory_is_too_small_for_is_refused_untokenised(tmp_path: Path) -> None:
    limits = dataclasses.replace(LIMITS, memory_bytes=256 << 20, job_seconds=60)
    worker = TextWorker(write_model(tmp_path, build_byte_level()), limits, TEXT_PROCESS)
    await worker.start()
    with pytest.raises(BodyRefusedError, match="8000000 bytes") as refused:
        await worker.run(EncodeTexts([LINES * 2_000_000, LINES * 2_000_000]))
    first_pid = large_process_of(worker).pid
    most = int(re.search(r"at most (\d+) bytes", str(refused.value))[1])
    [tokens] = await worker.run(EncodeTexts([LINES * (most // 2)]))
    assert len(tokens) == most // 2 * 2 > SMALL_BYTES
    assert large_process_of(worker).pid == first_pid
    await worker.close()


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


def process_of(worker: TextWorker) -> WorkerProcess:
    assert worker._small._process is not None
    return worker._small._process


def large_process_of(worker: TextWorker) -> WorkerProcess:
    assert worker._large._process is not None
    return worker._large._process


async def kill_process(worker: TextWorker) -> None:
    await kill(process_of(worker))


async def kill(process: WorkerProcess) -> None:
    os.kill(process.pid, signal.SIGKILL)
    await asyncio.shield(process._exit)


async def test_a_caller_that_leaves_during_its_job_harms_nobody(worker: TextWorker) -> None:
    leaving = asyncio.create_task(worker.run(say("loop")))
    await asyncio.sleep(0.05)
    leaving.cancel()
    assert len(await worker.run(EncodeTexts(["the"]))) == 1


async def test_a_caller_that_leaves_before_its_turn_has_no_turn(worker: TextWorker) -> None:
    running = asyncio.create_task(worker.run(say("loop")))
    await asyncio.sleep(0.05)
    leaving = [asyncio.create_task(worker.run(say("loop"))) for _ in range(20)]
    behind = asyncio.create_task(worker.run(EncodeTexts(["the"])))
    await asyncio.sleep(0.05)
    for task in leaving:
        task.cancel()
    async with asyncio.timeout(10):
        assert len(await behind) == 1
        with pytest.raises(TextTimeoutError):
            await running


async def test_a_caller_that_leaves_takes_its_job_along(worker: TextWorker) -> None:
    running, staying, *leaving = (asyncio.create_task(worker.run(say("loop"))) for _ in range(6))
    await wait_until_async("five jobs wait", lambda: len(worker._small._queue) == 5)
    for task in leaving:
        task.cancel()
    await asyncio.wait(leaving)
    assert len(worker._small._queue) == 1
    outcomes = await asyncio.gather(running, staying, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [TextTimeoutError] * 2


async def test_a_worker_that_dies_idle_is_replaced_before_anybody_asks(worker: TextWorker) -> None:
    first_pid = process_of(worker).pid
    await kill_process(worker)
    assert len(await worker.run(EncodeTexts(["the"]))) == 1
    assert process_of(worker).pid != first_pid
    assert worker.is_ready


async def test_a_worker_that_dies_during_a_job_fails_that_job(worker: TextWorker) -> None:
    dying = asyncio.create_task(worker.run(say("loop")))
    await asyncio.sleep(0.05)
    await kill_process(worker)
    with pytest.raises(TextWorkerDiedError):
        await dying
    assert len(await worker.run(EncodeTexts(["the"]))) == 1


async def test_a_worker_that_cannot_be_replaced_is_not_ready_and_says_so_in_the_end(
    worker: TextWorker, tmp_path: Path
) -> None:
    assert worker.is_ready
    assert not worker.failure.done()
    (tmp_path / "tokenizer.json").unlink()
    await kill_process(worker)
    waiting = [asyncio.create_task(worker.run(EncodeTexts(["the"]))) for _ in range(3)]
    async with asyncio.timeout(20):
        failure = await worker.failure
    assert "does not start, tried 3 times" in failure
    assert not worker.is_ready
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == [failure] * 3
    with pytest.raises(NoTextWorkerError, match="does not start"):
        await worker.run(EncodeTexts(["the"]))


async def test_jobs_wait_for_a_replacement_that_starts_at_a_later_try(
    worker: TextWorker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved = (tmp_path / "tokenizer.json").rename(tmp_path / "aside.json")
    await kill_process(worker)
    waiting = [asyncio.create_task(worker.run(EncodeTexts(["the"]))) for _ in range(3)]
    async with asyncio.timeout(20):
        await wait_until_async("a second start", lambda: "retrying in 0.1 s" in caplog.text)
        assert not worker.is_ready
        saved.rename(tmp_path / "tokenizer.json")
        assert [len(tokens) for tokens in await asyncio.gather(*waiting)] == [1, 1, 1]
    assert worker.is_ready
    assert caplog.text.count("did not start") == 2  # no job started a process of its own


async def test_a_process_that_the_system_refuses_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "absent"))
    worker = TextWorker(write_model(tmp_path, build_byte_level()), LIMITS, TEXT_PROCESS)
    with pytest.raises(NoTextWorkerError, match="tried 3 times"):
        await worker.start()
    assert await worker.failure


async def test_a_first_start_that_fails_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker = TextWorker(tmp_path, dataclasses.replace(LIMITS, retry_seconds=(0.05, 30.0)), TEXT_PROCESS)
    starting = asyncio.create_task(worker.start())
    async with asyncio.timeout(20):
        await wait_until_async("a second start", lambda: "retrying in 0.05 s" in caplog.text)
        write_model(tmp_path, build_byte_level())
        await starting
    assert len(await worker.run(EncodeTexts(["the"]))) == 1
    await worker.close()


START_AND_END = f"""
import socket, sys
from {WorkerReady.__module__} import WorkerReady
from {encode_frame.__module__} import encode_frame
with socket.socket(fileno=int(sys.argv[3])) as sock:
    sock.sendall(encode_frame(WorkerReady()))
"""


async def test_a_worker_that_starts_only_to_end_counts_as_one_that_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "short_lived.py").write_text(START_AND_END)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    limits = dataclasses.replace(LIMITS, proof_seconds=60)
    worker = TextWorker(tmp_path, limits, "short_lived")
    await worker.start()
    async with asyncio.timeout(20):
        failure = await worker.failure
    assert "does not start, tried 3 times" in failure
    assert caplog.text.count("ended as soon as it had started") == 2
    assert not worker.is_ready


async def test_a_worker_that_answered_is_replaced_however_often_it_ends(tmp_path: Path) -> None:
    limits = dataclasses.replace(LIMITS, proof_seconds=60)
    worker = TextWorker(write_model(tmp_path, build_byte_level()), limits, TEXT_PROCESS)
    await worker.start()
    for _ in range(len(limits.retry_seconds) + 2):
        assert len(await worker.run(EncodeTexts(["the"]))) == 1
        await kill_process(worker)
    assert len(await worker.run(EncodeTexts(["the"]))) == 1
    await worker.close()


async def test_a_worker_that_never_starts_says_how_often_it_was_tried(tmp_path: Path) -> None:
    with pytest.raises(NoTextWorkerError, match="does not start, tried 3 times"):
        await TextWorker(tmp_path, LIMITS, TEXT_PROCESS).start()


async def test_a_fault_of_ours_is_reported_as_a_failure(
    worker: TextWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: bytes) -> None:
        raise ValueError("ours")

    monkeypatch.setattr(process_of(worker), "ask", fail)
    with pytest.raises(NoTextWorkerError):
        await worker.run(EncodeTexts(["the"]))
    assert await worker.failure == "ours"
    assert not worker.is_ready


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
    worker = TextWorker(write_model(tmp_path, build()), LIMITS, TEXT_PROCESS)
    await worker.start()
    first_pid = process_of(worker).pid
    bad, good = await asyncio.gather(
        worker.run(EncodeTexts(["the"])), worker.run(EncodeTexts([END_TOKEN])), return_exceptions=True
    )
    assert isinstance(bad, TextJobFailedError)
    assert re.search(said, str(bad))
    assert isinstance(good, list)
    assert len(good[0]) == 1
    assert process_of(worker).pid == first_pid
    await worker.close()


def read_environment(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


async def test_a_worker_has_the_threads_that_are_its_own(worker: TextWorker) -> None:
    assert b"RAYON_NUM_THREADS=3" in read_environment(process_of(worker).pid)


async def test_closing_ends_the_process_and_fails_every_job(worker: TextWorker) -> None:
    process = process_of(worker)
    jobs = [asyncio.create_task(worker.run(say("loop"))) for _ in range(2)]
    await asyncio.sleep(0.05)
    await worker.close()
    assert process.has_ended
    for job in jobs:
        with pytest.raises(NoTextWorkerError, match="closed"):
            await job
    assert not worker.failure.done()


async def test_closing_waits_for_a_worker_that_is_just_starting(worker: TextWorker) -> None:
    with pytest.raises(TextTimeoutError):
        await worker.run(say("loop"))
    await asyncio.sleep(0)
    killed = process_of(worker)
    await worker.close()  # another is being started, or this one being killed
    assert killed.has_ended
    assert worker._small._maintenance is not None
    assert worker._small._maintenance.done()


LARGE = EncodeTexts(["the" * SMALL_BYTES])
READ_A_PIPE = f"""
import sys
from pathlib import Path
from {EncodeTexts.__module__} import EncodeTexts
from {TEXT_PROCESS} import main
main(sys.argv[1:], lambda pipe, body: (EncodeTexts([Path(pipe).read_text()]), b""))
"""
"""A large job takes as long as nobody writes into its pipe."""


async def test_no_small_job_waits_for_a_large_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "piped.py").write_text(READ_A_PIPE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    os.mkfifo(pipe := tmp_path / "pipe")
    limits = dataclasses.replace(LIMITS, job_seconds=60)
    worker = TextWorker(write_model(tmp_path, build_byte_level()), limits, "piped")
    await worker.start()
    large = [asyncio.create_task(worker.read(str(pipe), bytes(SMALL_BYTES))) for _ in range(3)]
    async with asyncio.timeout(20):
        for running in large:
            with await open_once_read(pipe) as writer:
                for _ in range(5):
                    assert len((await worker.run(EncodeTexts(["the"])))[0]) == 1
                assert not running.done()
                writer.write("the")
            assert [len(tokens) for tokens in (await running).prompts] == [1]
    await worker.close()


async def open_once_read(pipe: Path) -> TextIO:
    """Open the pipe as soon as a process reads it."""
    while True:
        with contextlib.suppress(OSError):
            return os.fdopen(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK), "w")
        await asyncio.sleep(0.01)


async def test_the_process_of_large_jobs_starts_with_the_first(worker: TextWorker) -> None:
    await worker.run(EncodeTexts(["the" * (SMALL_BYTES // 4)]))
    assert worker._large._process is None
    both = await asyncio.gather(worker.run(LARGE), worker.run(LARGE))
    assert [len(prompts[0]) for prompts in both] == [SMALL_BYTES] * 2
    process = large_process_of(worker)
    assert process.pid != process_of(worker).pid
    assert worker.is_ready
    await worker.close()
    assert process.has_ended
    with pytest.raises(NoTextWorkerError, match="closed"):
        await worker.run(LARGE)


async def test_a_worker_that_is_closed_starts_no_process_for_a_large_job(worker: TextWorker) -> None:
    await worker.close()
    with pytest.raises(NoTextWorkerError, match="closed"):
        await worker.run(LARGE)
    assert worker._large._maintenance is None


async def test_a_large_job_that_ends_its_process_fails_alone(worker: TextWorker) -> None:
    await worker.run(LARGE)
    first_pid = process_of(worker).pid
    loop = RenderChat([{"role": "user", "content": "loop"}, {"role": "user", "content": "x" * SMALL_BYTES}])
    dying = asyncio.create_task(worker.run(loop))
    await asyncio.sleep(0.05)
    await kill(large_process_of(worker))
    with pytest.raises(TextWorkerDiedError):
        await dying
    assert worker.is_ready
    with pytest.raises(TextTimeoutError):
        await worker.run(loop)
    assert len((await worker.run(LARGE))[0]) == SMALL_BYTES
    assert process_of(worker).pid == first_pid


async def test_without_a_process_for_large_jobs_the_worker_is_not_ready_and_fails(
    worker: TextWorker, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").unlink()
    large = asyncio.create_task(worker.run(LARGE))
    async with asyncio.timeout(20):
        failure = await worker.failure
    assert "does not start, tried 3 times" in failure
    assert not worker.is_ready
    with pytest.raises(NoTextWorkerError, match="does not start"):
        await large
    with pytest.raises(NoTextWorkerError, match="does not start"):
        await worker.run(LARGE)
    assert len(await worker.run(EncodeTexts(["the"]))) == 1  # a request that had begun


async def test_the_memory_of_small_jobs_is_less(tmp_path: Path) -> None:
    limits = dataclasses.replace(LIMITS, memory_bytes=2 << 30)
    worker = TextWorker(write_model(tmp_path, build_byte_level()), limits, TEXT_PROCESS)
    await worker.start()
    await worker.run(LARGE)
    sizes = [read_memory_limit(process.pid) for process in (process_of(worker), large_process_of(worker))]
    assert sizes == [1 << 30, 2 << 30]
    await worker.close()


def read_memory_limit(pid: int) -> int:
    return resource.prlimit(pid, resource.RLIMIT_DATA)[0]


async def test_a_broken_template_ends_the_start_and_says_the_line(tmp_path: Path) -> None:
    model = write_model(tmp_path, build_byte_level(), "a\n{% for %}")
    worker = TextWorker(model, TextLimits(), "millrace_runtime.chat.text_process")
    with pytest.raises(NoTextWorkerError, match="line 2 of the model's chat template does not compile"):
        await worker.start()
    assert worker.is_model_at_fault
    assert "line 2" in await worker.failure
    await worker.close()
