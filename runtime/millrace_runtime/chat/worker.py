"""The text worker as the HTTP process sees it: sends small and large jobs to processes of their own."""

import asyncio
import dataclasses
import logging
from array import array
from collections.abc import Coroutine, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeAlias

from millrace_runtime.chat.errors import (
    BadModelTextError,
    BodyRefusedError,
    TextJobFailedError,
    TextMemoryError,
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
from millrace_runtime.chat.text_limits import TextLimits
from millrace_runtime.protocol.encoding import encode_frame, unpack_tokens

logger = logging.getLogger(__name__)
SMALL_BYTES = 128 << 10
"""Tokenising so much text takes 27 ms, or 75 ms if each letter is a piece of its own; 8 MiB take seconds."""
_SMALL_MEMORY_BYTES = 1 << 30
"""The most that the process of the small jobs may use. The plan of the pod's memory counts what it usually
does (`SMALL_TEXT_BYTES`), and all that the other one may use."""
Tokens: TypeAlias = "array[int]"


class ReadPrompts(NamedTuple):
    """The prompts of a job, and of a body also its request."""

    request: bytes
    """The body's request without its prompts, as the reader encoded it."""
    prompts: list[Tokens]


class TextWorker:
    """Renders and tokenises in two processes: no small job waits for a large one.

    The process of the large jobs starts with the first of them.
    """

    def __init__(self, model_path: Path, limits: TextLimits, module: str) -> None:
        """`module` is what the processes run: `chat/text_process.py`, with or without readers of bodies."""
        memory_bytes = min(limits.memory_bytes, _SMALL_MEMORY_BYTES)
        small_limits = dataclasses.replace(limits, memory_bytes=memory_bytes)
        self._small = JobQueue(model_path, small_limits, module, self._report_failure)
        self._large = JobQueue(model_path, limits, module, self._report_failure)
        self.is_model_at_fault = False
        """Whether the failure is the model's: no other machine would serve it either."""

    @cached_property
    def failure(self) -> "asyncio.Future[str]":
        """Gets the reason when one process is not restarted any more. Its jobs fail from then on."""
        return asyncio.get_running_loop().create_future()

    @property
    def is_ready(self) -> bool:
        """Whether the worker runs jobs, small and large."""
        return self._small.has_started.is_set() and not (self._small.is_failing or self._large.is_failing)

    async def start(self) -> None:
        """Start the process and wait until it has loaded. Raises NoTextWorkerError after the last attempt."""
        self._small.begin()
        started = asyncio.create_task(self._small.has_started.wait())
        try:
            await asyncio.wait((started, self.failure), return_when=asyncio.FIRST_COMPLETED)
        finally:
            started.cancel()
        self._small.require_open()

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
        """End the processes. Jobs under way fail."""
        await self._small.close()  # from now on no large job begins the other
        await self._large.close()

    async def _run_text(self, frame: bytes) -> Sequence[Tokens]:
        return _unpack(await self._run(frame)).prompts

    async def _run_body(self, frame: bytes) -> ReadPrompts:
        return _unpack(await self._run(frame))

    async def _run(self, frame: bytes) -> FromTextWorker:
        return _require_success(await self._choose_queue(frame).run(frame))

    def _choose_queue(self, frame: bytes) -> JobQueue:
        """Return the queue for the job. Raises NoTextWorkerError before the start or after the end."""
        self._small.require_open()
        if len(frame) <= SMALL_BYTES:
            return self._small
        self._large.begin()
        return self._large

    def _report_failure(self, error: Exception) -> None:
        """Set the failure, unless the other process has failed before."""
        if not self.failure.done():
            self.is_model_at_fault = isinstance(error, BadModelTextError)
            self.failure.set_result(str(error))


def _encode(job: AnyJob, max_prompt_tokens: int | None) -> bytes:
    return encode_frame(ToTextWorker(job, max_prompt_tokens))


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
