"""The asyncio side of the text worker: starts it, hands it one job at a time, replaces it when it fails."""

import asyncio
import contextlib
import logging
import os
import socket
import sys
from array import array
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from millrace_runtime.chat.errors import (
    BodyRefusedError,
    TemplateError,
    TextJobFailedError,
    TextMemoryError,
    TextTimeoutError,
    TextWorkerDiedError,
)
from millrace_runtime.chat.jobs import (
    Encoded,
    FromTextWorker,
    JobFailed,
    JobRefused,
    MemoryExceeded,
    ReadBody,
    TextJob,
    ToTextWorker,
    WorkerReady,
)
from millrace_runtime.protocol.framing import FrameDecoder, FrameError, encode_frame
from millrace_runtime.protocol.tokens import unpack_tokens

logger = logging.getLogger(__name__)
TEXT_MODULE = "millrace_runtime.chat.text_process"
_READ_BYTES = 1 << 20
_MAX_THREADS = 4
_ORPHAN_SECONDS = 5.0
"""How much longer than we do the worker's own alarm waits: it matters only when we are gone."""
Result = TypeVar("Result")
Tokens: TypeAlias = "array[int]"


@dataclass(frozen=True)
class TextLimits:
    """What the worker may spend."""

    job_seconds: float = 10.0
    """A job that runs longer is killed with the worker."""
    memory_bytes: int = 4 * 1024**3
    """Data memory of the worker's process."""
    start_seconds: float = 60.0
    """How long loading the tokenizer may take."""
    retry_seconds: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0)
    """Pauses between the tries to start it; one try more than pauses."""


class ReadPrompts(NamedTuple):
    """What came of a job."""

    request: bytes
    """What the reader says of a body besides its prompts."""
    prompts: list[Tokens]


class _Connection:
    """One living worker process and its socket."""

    def __init__(self, process: asyncio.subprocess.Process, sock: socket.socket) -> None:
        self._process = process
        self._sock = sock
        self._decoder: FrameDecoder[FromTextWorker] = FrameDecoder(FromTextWorker)  # type: ignore[arg-type]
        self._messages: list[FromTextWorker] = []

    async def send(self, job: ToTextWorker) -> None:
        await asyncio.get_running_loop().sock_sendall(self._sock, encode_frame(job))

    async def receive(self) -> FromTextWorker:
        """Return the next message. Raises EOFError when the worker is gone."""
        while not self._messages:
            data = await asyncio.get_running_loop().sock_recv(self._sock, _READ_BYTES)
            if not data:
                raise EOFError("the text worker closed its socket")
            self._messages += self._decoder.feed(data)
        return self._messages.pop(0)

    async def kill(self) -> None:
        self._sock.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


class TextWorker:
    """Renders and tokenises in a process of its own, one job at a time in order of arrival.

    A job that runs too long, uses too much memory or crashes the process fails alone: the next job
    finds a fresh worker.
    """

    def __init__(self, model_path: Path, limits: TextLimits | None = None, module: str = TEXT_MODULE) -> None:
        """`module` is what the process runs: chat/text_process.py, with readers of bodies or without."""
        self._model_path = model_path
        self._module = module
        self._limits = limits or TextLimits()
        self._turn = asyncio.Lock()
        self._connection: _Connection | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    async def start(self) -> None:
        """Start the process and wait until it has loaded. Raises TextWorkerDiedError after the last try."""
        for seconds in self._limits.retry_seconds:
            try:
                await self._start_once()
            except TextWorkerDiedError as error:
                logger.warning("%s; again in %g s", error, seconds)
                await asyncio.sleep(seconds)
            else:
                return
        try:
            await self._start_once()
        except TextWorkerDiedError as error:
            num_tries = len(self._limits.retry_seconds) + 1
            raise TextWorkerDiedError(
                f"the text worker does not start, tried {num_tries} times; the log says why"
            ) from error

    async def run(self, job: TextJob) -> Sequence[Tokens]:
        """Return each prompt's token ids. Raises TemplateError or a TextWorkerError."""
        return (await self._run(job)).prompts

    async def read(self, dialect: str, body: bytes) -> ReadPrompts:
        """Return what the module's reader makes of a whole body. Raises as `run`, and BodyRefusedError."""
        return await self._run(ReadBody(dialect, body))

    async def _run(self, job: ToTextWorker) -> ReadPrompts:
        """Run a job in its turn.

        A caller that is cancelled leaves the job to end (or to be killed) in its turn, so that its time
        is never charged to the job behind it.
        """
        return await asyncio.shield(self._spawn(self._run_in_turn(job)))

    async def close(self) -> None:
        """End the process. Jobs under way fail."""
        self._is_closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # one may be starting another process
        await self._drop_connection()

    async def _start_once(self) -> None:
        async with self._turn:
            await self._connected()

    def _spawn(self, work: Coroutine[Any, Any, Result]) -> "asyncio.Task[Result]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: "asyncio.Task[Result]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # a caller that left does not read it

    async def _run_in_turn(self, job: ToTextWorker) -> ReadPrompts:
        async with self._turn:
            connection = await self._connected()
            answer = await self._ask(connection, job)
        match answer:
            case Encoded(prompts, request):
                return ReadPrompts(request, [unpack_tokens(prompt) for prompt in prompts])
            case JobRefused(message) if isinstance(job, ReadBody):
                raise BodyRefusedError(message, answer.param, answer.code)
            case JobRefused(message):
                raise TemplateError(message)
            case JobFailed(message):
                logger.error("a job of the text worker failed: %s", message)
                raise TextJobFailedError(message)
            case MemoryExceeded():
                raise TextMemoryError("the prompt needs more memory than rendering and tokenising may use")
        raise TextWorkerDiedError(f"the text worker answered out of turn: {answer!r}")

    async def _ask(self, connection: _Connection, job: ToTextWorker) -> FromTextWorker:
        try:
            async with asyncio.timeout(self._limits.job_seconds):
                await connection.send(job)
                return await connection.receive()
        except TimeoutError as error:
            await self._replace_later("ran past its time limit")
            raise TextTimeoutError(
                f"rendering and tokenising the prompt took longer than {self._limits.job_seconds:g} s"
            ) from error
        except (EOFError, OSError, FrameError) as error:
            await self._replace_later("ended during a job")
            raise TextWorkerDiedError("the text worker ended while it handled this prompt") from error

    async def _replace_later(self, why: str) -> None:
        logger.warning("text worker %s: starting another", why)
        await self._drop_connection()
        if not self._is_closed:
            self._spawn(self.start())

    async def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.kill()

    async def _connected(self) -> _Connection:
        if self._connection is None:
            self._connection = await self._launch()
        return self._connection

    async def _launch(self) -> _Connection:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *self._command(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=_environment(),
            )
        connection = _Connection(process, ours)
        try:
            async with asyncio.timeout(self._limits.start_seconds):
                first = await connection.receive()
        except (TimeoutError, EOFError, OSError, FrameError) as error:
            await connection.kill()
            raise TextWorkerDiedError("the text worker did not start") from error
        except BaseException:
            await connection.kill()
            raise
        if not isinstance(first, WorkerReady):
            await connection.kill()
            raise TextWorkerDiedError("the text worker's first message is not what was expected")
        return connection

    def _command(self, fd: int) -> list[str]:
        limits = self._limits
        alarm_seconds = limits.job_seconds + _ORPHAN_SECONDS
        arguments = [str(self._model_path), str(fd), str(limits.memory_bytes), str(alarm_seconds)]
        return [sys.executable, "-m", self._module, *arguments]


def _environment() -> dict[str, str]:
    """Keep tokenising off the engine's cores and the allocator's arenas within the memory limit."""
    threads = min(_MAX_THREADS, os.cpu_count() or 1)
    return os.environ | {
        "RAYON_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "true",
        "MALLOC_ARENA_MAX": "2",
    }
