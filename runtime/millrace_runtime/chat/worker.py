"""The text worker as the HTTP process sees it: starts the process, sends it jobs, replaces it if it fails."""

import asyncio
import contextlib
import logging
from array import array
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeAlias

from millrace_runtime.chat.errors import (
    BadModelTextError,
    BodyRefusedError,
    NoTextWorkerError,
    TextJobFailedError,
    TextMemoryError,
    TextWorkerError,
)
from millrace_runtime.chat.job_queue import JobQueue
from millrace_runtime.chat.jobs import (
    AnyJob,
    Encoded,
    FromTextWorker,
    JobFailed,
    JobRefused,
    MemoryExceeded,
    ReadBody,
    TextJob,
    ToTextWorker,
)
from millrace_runtime.chat.worker_process import TextLimits, WorkerProcess
from millrace_runtime.protocol.encoding import encode_frame, unpack_tokens

logger = logging.getLogger(__name__)
_CLOSED = "the text worker was closed"
Tokens: TypeAlias = "array[int]"


class ReadPrompts(NamedTuple):
    """The prompts of a job, and of a body also its request."""

    request: bytes
    """The body's request without its prompts, as the reader encoded it."""
    prompts: list[Tokens]


@dataclass(frozen=True, eq=False)
class _QueuedJob:
    """A job in the queue. A caller that leaves cancels the answer."""

    frame: bytes
    answer: "asyncio.Future[FromTextWorker]"

    @property
    def num_bytes(self) -> int:
        """The bytes of its frame."""
        return len(self.frame)


class TextWorker:
    """Renders and tokenises in a process of its own, one job at a time, small ones before large ones.

    If a job runs too long, uses too much memory or crashes the process, only this job fails. The jobs after
    it wait for a new process. One task owns the process and sends it the jobs.
    """

    def __init__(self, model_path: Path, limits: TextLimits, module: str) -> None:
        """`module` is what the process runs: `chat/text_process.py`, with or without readers of bodies."""
        self._model_path = model_path
        self._module = module
        self._limits = limits
        self._queue: JobQueue[_QueuedJob] = JobQueue()
        self._has_news = asyncio.Event()
        """Set when a job was queued or a process ended."""
        self._has_started = asyncio.Event()
        self._process: WorkerProcess | None = None
        self._pauses = iter(self._limits.retry_seconds)
        """The pauses that are left before further retries. A proven process resets them."""
        self._maintenance: asyncio.Task[None] | None = None
        self._is_ready = False
        self._refusal: str | None = "the text worker was not started"
        """Why no job may be queued; None if jobs may."""
        self.is_model_at_fault = False
        """Whether the failure is the model's: no other machine would serve it either."""

    @cached_property
    def failure(self) -> "asyncio.Future[str]":
        """Gets the reason when the worker stops retrying. From then on every job fails at once."""
        return asyncio.get_running_loop().create_future()

    @property
    def is_ready(self) -> bool:
        """Whether the worker runs jobs: a process has started, and no attempt to replace it has failed since.

        During the first attempt to replace a process, jobs wait: one killed job must not make the whole
        replica unready.
        """
        return self._is_ready

    async def start(self) -> None:
        """Start the process and wait until it has loaded. Raises NoTextWorkerError after the last attempt."""
        self._refusal = None
        self._maintenance = asyncio.create_task(self._maintain_process())
        started = asyncio.create_task(self._has_started.wait())
        try:
            await asyncio.wait((started, self.failure), return_when=asyncio.FIRST_COMPLETED)
        finally:
            started.cancel()
        self._require_open()

    def run(
        self, job: TextJob, max_prompt_tokens: int | None = None
    ) -> Coroutine[None, None, Sequence[Tokens]]:
        """Return each prompt's token ids. Raises BodyRefusedError or a TextWorkerError.

        It encodes the job before it returns, so that no caller has to keep the job meanwhile.
        """
        return self._run_text(_encode(job, max_prompt_tokens))

    def read(
        self, dialect: str, body: bytes | bytearray, max_prompt_tokens: int | None = None
    ) -> Coroutine[None, None, ReadPrompts]:
        """Return a body's request and prompts, by the module's reader. Encodes and raises as `run` does."""
        return self._run_body(_encode(ReadBody(dialect, bytes(body)), max_prompt_tokens))

    async def close(self) -> None:
        """End the process. Jobs under way fail."""
        if self._maintenance is not None:
            self._maintenance.cancel()
            await asyncio.gather(self._maintenance, return_exceptions=True)
        if self._process is not None:
            await self._process.kill()  # the task may have been cancelled while it waited for the end

    async def _run_text(self, frame: bytes) -> Sequence[Tokens]:
        return _unpack(await self._run(frame)).prompts

    async def _run_body(self, frame: bytes) -> ReadPrompts:
        return _unpack(await self._run(frame))

    async def _run(self, frame: bytes) -> FromTextWorker:
        """Run a job in its turn.

        If the caller is cancelled, its job leaves the queue. A job that already runs goes on until it ends or
        is killed, so that its time never counts as the next job's.
        """
        self._require_open()
        job = _QueuedJob(frame, asyncio.get_running_loop().create_future())
        self._queue.add(job)
        self._has_news.set()
        try:
            return _require_success(await job.answer)
        except asyncio.CancelledError:
            with contextlib.suppress(ValueError):  # it runs already
                self._queue.remove(job)
            raise

    def _require_open(self) -> None:
        if self._refusal is not None:
            raise NoTextWorkerError(self._refusal)

    async def _maintain_process(self) -> None:
        """Run one process after the other, until none can be started any more."""
        why = _CLOSED
        try:
            while True:
                try:
                    await self._use_process()
                except NoTextWorkerError as error:
                    await self._back_off(error)
        except Exception as error:
            self.is_model_at_fault = isinstance(error, BadModelTextError)
            if not isinstance(error, (NoTextWorkerError, BadModelTextError)):
                logger.exception("the text worker failed and is not restarted")
            why = str(error)
            self.failure.set_result(why)
        finally:
            self._refuse_all(why)

    async def _use_process(self) -> None:
        """Start a process and send it jobs until it fails.

        Raises NoTextWorkerError if the process does not start or ends at once. A process that a job killed
        raises nothing: else clients could use up the retries.
        """
        process = await WorkerProcess.start(self._model_path, self._limits, self._module)
        self._process = process
        self._is_ready = True
        self._has_started.set()
        process.call_at_end(self._has_news.set)
        failed = await self._run_jobs(process)
        await process.kill()
        if process.is_proven:
            self._pauses = iter(self._limits.retry_seconds)
        elif failed is None:
            raise NoTextWorkerError("the text worker ended as soon as it had started")
        fault = "ended while it was idle" if failed is None else f"failed a job ({failed})"
        logger.warning("the text worker %s: starting another", fault)

    async def _back_off(self, error: NoTextWorkerError) -> None:
        """Wait before the next attempt. Raises NoTextWorkerError after the last one."""
        self._is_ready = False
        seconds = next(self._pauses, None)
        if seconds is None:
            num_tries = len(self._limits.retry_seconds) + 1
            raise NoTextWorkerError(
                f"the text worker does not start, tried {num_tries} times; the log says why"
            ) from error
        logger.warning("%s; retrying in %g s", error, seconds)
        await asyncio.sleep(seconds)

    async def _run_jobs(self, process: WorkerProcess) -> TextWorkerError | None:
        """Send the process one job after the other. Return a job's failure, or None if it ended idle."""
        while (job := await self._next_job(process)) is not None:
            failed = await _answer(process, job)
            del job  # else its frame would stay in memory until the next job
            if failed is not None:
                return failed
        return None

    async def _next_job(self, process: WorkerProcess) -> _QueuedJob | None:
        """Return the next job whose caller still waits; None when the process has ended."""
        while not process.has_ended:
            self._has_news.clear()
            while self._queue:
                job = self._queue.pop()
                if not job.answer.done():
                    return job
            await self._has_news.wait()
        return None

    def _refuse_all(self, why: str) -> None:
        """Fail every waiting job, and every later one."""
        self._is_ready = False
        self._refusal = why
        while self._queue:
            _settle(self._queue.pop(), NoTextWorkerError(why))


def _encode(job: AnyJob, max_prompt_tokens: int | None) -> bytes:
    return encode_frame(ToTextWorker(job, max_prompt_tokens))


async def _answer(process: WorkerProcess, job: _QueuedJob) -> TextWorkerError | None:
    """Run a job and give its outcome to the caller. Return the failure, or None."""
    outcome: FromTextWorker | TextWorkerError = NoTextWorkerError(_CLOSED)
    try:
        outcome = await process.ask(job.frame)
    except TextWorkerError as error:
        outcome = error
    finally:
        _settle(job, outcome)
    return outcome if isinstance(outcome, TextWorkerError) else None


def _settle(job: _QueuedJob, outcome: FromTextWorker | TextWorkerError) -> None:
    if job.answer.done():  # the caller has left
        return
    if isinstance(outcome, TextWorkerError):
        job.answer.set_exception(outcome)
    else:
        job.answer.set_result(outcome)


def _unpack(answer: FromTextWorker) -> ReadPrompts:
    if not isinstance(answer, Encoded):
        _refuse_unexpected(answer)
    return ReadPrompts(answer.request, [unpack_tokens(prompt) for prompt in answer.prompts])


def _require_success(answer: FromTextWorker) -> FromTextWorker:
    match answer:
        case JobRefused(message, param, code):
            raise BodyRefusedError(message, param, code)
        case JobFailed(message):
            logger.error("a job of the text worker failed: %s", message)
            raise TextJobFailedError(message)
        case MemoryExceeded():
            raise TextMemoryError("the prompt needs more memory than rendering and tokenising may use")
    return answer


def _refuse_unexpected(answer: FromTextWorker) -> NoReturn:
    raise TextJobFailedError(f"the text worker sent an unexpected answer: {answer!r}")
