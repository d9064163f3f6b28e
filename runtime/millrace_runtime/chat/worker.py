"""The asyncio side of the text worker: starts it, hands it one job at a time, replaces it when it fails."""

import asyncio
import contextlib
import logging
from array import array
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeAlias

from millrace_runtime.chat.errors import (
    BodyRefusedError,
    NoTextWorkerError,
    TextJobFailedError,
    TextMemoryError,
    TextWorkerError,
)
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
from millrace_runtime.protocol.framing import encode_frame
from millrace_runtime.protocol.tokens import unpack_tokens

logger = logging.getLogger(__name__)
TEXT_MODULE = "millrace_runtime.chat.text_process"
_CLOSED = "the text worker was closed"
Tokens: TypeAlias = "array[int]"


class ReadPrompts(NamedTuple):
    """What came of a job."""

    request: bytes
    """What the reader says of a body besides its prompts."""
    prompts: list[Tokens]


@dataclass(frozen=True, eq=False)
class _Asked:
    """A job in the queue. Its answer is done early where the caller has left."""

    frame: bytes
    answer: "asyncio.Future[FromTextWorker]"


class TextWorker:
    """Renders and tokenises in a process of its own, one job at a time in order of arrival.

    A job that runs too long, uses too much memory or crashes the process fails alone: the jobs behind it
    wait for a fresh process. One task keeps the process and hands out the jobs.
    """

    def __init__(self, model_path: Path, limits: TextLimits | None = None, module: str = TEXT_MODULE) -> None:
        """`module` is what the process runs: chat/text_process.py, with readers of bodies or without."""
        self._model_path = model_path
        self._module = module
        self._limits = limits or TextLimits()
        self._queue: deque[_Asked] = deque()
        self._has_news = asyncio.Event()
        """A job was queued, or a process ended."""
        self._has_started = asyncio.Event()
        self._process: WorkerProcess | None = None
        self._pauses = iter(self._limits.retry_seconds)
        """What is left of them: before the tries that follow useless processes, one behind the other."""
        self._keeping: asyncio.Task[None] | None = None
        self._is_ready = False
        self._refusal: str | None = "the text worker was not started"
        """Why no job is taken at all, not even to wait."""

    @cached_property
    def failure(self) -> "asyncio.Future[str]":
        """Done once no process can be had: why. From then on every job fails at once."""
        return asyncio.get_running_loop().create_future()

    @property
    def is_ready(self) -> bool:
        """Whether jobs are taken: a process has started, and no try to replace it has failed since.

        While a replacement's first try is under way, jobs wait for it: a job that is killed must not
        make the whole replica unready.
        """
        return self._is_ready

    async def start(self) -> None:
        """Start the process and wait until it has loaded. Raises NoTextWorkerError after the last try."""
        self._refusal = None
        self._keeping = asyncio.create_task(self._keep())
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

        The job is encoded before this returns, so that nobody has to hold it while it waits.
        """
        return self._run_text(_encode(job, max_prompt_tokens))

    def read(
        self, dialect: str, body: bytes | bytearray, max_prompt_tokens: int | None = None
    ) -> Coroutine[None, None, ReadPrompts]:
        """Return what the module's reader makes of a whole body. Encodes it at once, and raises, as `run`."""
        return self._run(_encode(ReadBody(dialect, bytes(body)), max_prompt_tokens))

    async def close(self) -> None:
        """End the process. Jobs under way fail."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        if self._process is not None:
            await self._process.kill()  # the keeper may have been cancelled while it waited for the end

    async def _run_text(self, frame: bytes) -> Sequence[Tokens]:
        return (await self._run(frame)).prompts

    async def _run(self, frame: bytes) -> ReadPrompts:
        """Run a job in its turn.

        A caller that is cancelled loses its turn, and what it asked is let go. Once the job runs it is left
        to end (or to be killed), so that its time is never charged to the job behind it.
        """
        self._require_open()
        asked = _Asked(frame, asyncio.get_running_loop().create_future())
        self._queue.append(asked)
        self._has_news.set()
        try:
            return _interpret(await asked.answer)
        except asyncio.CancelledError:
            with contextlib.suppress(ValueError):  # it runs already
                self._queue.remove(asked)
            raise

    def _require_open(self) -> None:
        if self._refusal is not None:
            raise NoTextWorkerError(self._refusal)

    async def _keep(self) -> None:
        """Keep a process, and hand it jobs until it fails. Ends when none can be started any more."""
        why = _CLOSED
        try:
            while True:
                try:
                    await self._use_process()
                except NoTextWorkerError as error:
                    await self._back_off(error)
        except Exception as error:
            if not isinstance(error, NoTextWorkerError):
                logger.exception("the text worker is given up")
            why = str(error)
            self.failure.set_result(why)
        finally:
            self._refuse_all(why)

    async def _use_process(self) -> None:
        """Start a process and hand it jobs until it fails. Raises NoTextWorkerError if it was of no use.

        One that a job killed was of use: else a client could have the whole worker given up.
        """
        process = await WorkerProcess.start(self._model_path, self._limits, self._module)
        self._process = process
        self._is_ready = True
        self._has_started.set()
        process.call_at_end(self._has_news.set)
        failed = await self._serve(process)
        await process.kill()
        if process.is_proven:
            self._pauses = iter(self._limits.retry_seconds)
        elif failed is None:
            raise NoTextWorkerError("the text worker ended as soon as it had started")
        fault = "ended while it was idle" if failed is None else f"failed a job ({failed})"
        logger.warning("text worker %s: starting another", fault)

    async def _back_off(self, error: NoTextWorkerError) -> None:
        """Wait before the next try. Raises NoTextWorkerError after the last one."""
        self._is_ready = False
        seconds = next(self._pauses, None)
        if seconds is None:
            num_tries = len(self._limits.retry_seconds) + 1
            raise NoTextWorkerError(
                f"the text worker does not start, tried {num_tries} times; the log says why"
            ) from error
        logger.warning("%s; again in %g s", error, seconds)
        await asyncio.sleep(seconds)

    async def _serve(self, process: WorkerProcess) -> TextWorkerError | None:
        """Hand the process one job after the other. Returns how one failed; None: the process ended idle."""
        while (asked := await self._next_job(process)) is not None:
            failed = await _answer(process, asked)
            del asked  # else its frame would be held until the next job
            if failed is not None:
                return failed
        return None

    async def _next_job(self, process: WorkerProcess) -> _Asked | None:
        """Return the next job that somebody waits for; None when the process has ended."""
        while not process.has_ended:
            self._has_news.clear()
            while self._queue:
                asked = self._queue.popleft()
                if not asked.answer.done():
                    return asked
            await self._has_news.wait()
        return None

    def _refuse_all(self, why: str) -> None:
        """Fail every job that waits, and every later one."""
        self._is_ready = False
        self._refusal = why
        while self._queue:
            _settle(self._queue.popleft(), NoTextWorkerError(why))


def _encode(job: AnyJob, max_prompt_tokens: int | None) -> bytes:
    return encode_frame(ToTextWorker(job, max_prompt_tokens))


async def _answer(process: WorkerProcess, asked: _Asked) -> TextWorkerError | None:
    """Hand a job to the process, and its outcome to the caller. Returns how it failed."""
    outcome: FromTextWorker | TextWorkerError = NoTextWorkerError(_CLOSED)
    try:
        outcome = await process.ask(asked.frame)
    except TextWorkerError as error:
        outcome = error
    finally:
        _settle(asked, outcome)
    return outcome if isinstance(outcome, TextWorkerError) else None


def _settle(asked: _Asked, outcome: FromTextWorker | TextWorkerError) -> None:
    if asked.answer.done():  # the caller has left
        return
    if isinstance(outcome, TextWorkerError):
        asked.answer.set_exception(outcome)
    else:
        asked.answer.set_result(outcome)


def _interpret(answer: FromTextWorker) -> ReadPrompts:
    match answer:
        case Encoded(prompts, request):
            return ReadPrompts(request, [unpack_tokens(prompt) for prompt in prompts])
        case JobRefused(message, param, code):
            raise BodyRefusedError(message, param, code)
        case JobFailed(message):
            logger.error("a job of the text worker failed: %s", message)
            raise TextJobFailedError(message)
        case MemoryExceeded():
            raise TextMemoryError("the prompt needs more memory than rendering and tokenising may use")
    raise TextJobFailedError(f"the text worker answered out of turn: {answer!r}")
