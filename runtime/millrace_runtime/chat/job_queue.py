"""A queue of jobs for the text worker, and the process that runs them one by one."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from millrace_runtime.chat.errors import BadModelTextError, NoTextWorkerError, TextWorkerError
from millrace_runtime.chat.jobs import FromTextWorker
from millrace_runtime.chat.text_limits import TextLimits
from millrace_runtime.chat.worker_process import WorkerProcess

logger = logging.getLogger(__name__)
_CLOSED = "the text worker was closed"


@dataclass(frozen=True, eq=False)
class _QueuedJob:
    """A job in the queue. A caller that leaves cancels the answer."""

    frame: bytes
    answer: "asyncio.Future[FromTextWorker]"


class JobQueue:
    """Runs jobs in order of arrival, in a process of its own.

    If a job runs too long, uses too much memory or crashes the process, only this job fails. The jobs after
    it wait for a new process. One task owns the process and sends it the jobs.
    """

    def __init__(
        self, model_path: Path, limits: TextLimits, module: str, on_failure: Callable[[Exception], None]
    ) -> None:
        """`module` is what the process runs. `on_failure` gets the error after which none is started."""
        self._model_path = model_path
        self._module = module
        self._limits = limits
        self._on_failure = on_failure
        self._queue: deque[_QueuedJob] = deque()
        self._has_news = asyncio.Event()
        """Set when a job was queued or a process ended."""
        self._process: WorkerProcess | None = None
        self._pauses = iter(self._limits.retry_seconds)
        """The pauses that are left before further retries. A proven process resets them."""
        self._maintenance: asyncio.Task[None] | None = None
        self._refusal: str | None = "the text worker was not started"
        """Why no job may be queued; None if jobs may."""
        self.has_started = asyncio.Event()
        """Set once a process has loaded."""
        self.is_failing = False
        """Whether no process has started since an attempt failed, or none is started any more.

        During the first attempt to replace a process, jobs wait: one killed job must not make the whole
        replica unready.
        """

    def begin(self) -> None:
        """Start the process, if this was not called before."""
        if self._maintenance is None:
            self._refusal = None
            self._maintenance = asyncio.create_task(self._maintain_process())

    def require_open(self) -> None:
        """Raise NoTextWorkerError if no job may be queued."""
        if self._refusal is not None:
            raise NoTextWorkerError(self._refusal)

    async def run(self, frame: bytes) -> FromTextWorker:
        """Run a job in its turn. Raises TextWorkerError.

        If the caller is cancelled, its job leaves the queue. A job that already runs goes on until it ends or
        is killed, so that its time never counts as the next job's.
        """
        self.require_open()
        job = _QueuedJob(frame, asyncio.get_running_loop().create_future())
        self._queue.append(job)
        self._has_news.set()
        try:
            return await job.answer
        except asyncio.CancelledError:
            with contextlib.suppress(ValueError):  # it runs already
                self._queue.remove(job)
            raise

    async def close(self) -> None:
        """End the process. Jobs under way fail."""
        if self._maintenance is not None:
            self._maintenance.cancel()
            await asyncio.gather(self._maintenance, return_exceptions=True)
        if self._process is not None:
            await self._process.kill()  # the task may have been cancelled while it waited for the end

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
            if not isinstance(error, (NoTextWorkerError, BadModelTextError)):
                logger.exception("the text worker failed and is not restarted")
            why = str(error)
            self._on_failure(error)
        finally:
            self._refuse_all(why)

    async def _use_process(self) -> None:
        """Start a process and send it jobs until it fails.

        Raises NoTextWorkerError if the process does not start or ends at once. A process that a job killed
        raises nothing: else clients could use up the retries.
        """
        process = await WorkerProcess.start(self._model_path, self._limits, self._module)
        self._process = process
        self.is_failing = False
        self.has_started.set()
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
        self.is_failing = True
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
                job = self._queue.popleft()
                if not job.answer.done():
                    return job
            await self._has_news.wait()
        return None

    def _refuse_all(self, why: str) -> None:
        """Fail every waiting job, and every later one."""
        self.is_failing = True
        self._refusal = why
        while self._queue:
            _settle(self._queue.popleft(), NoTextWorkerError(why))


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
