"""One process of the text worker: starting it, running one job at a time, killing it."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from pathlib import Path

from millrace_runtime.chat.errors import (
    BadModelTextError,
    NoTextWorkerError,
    TextTimeoutError,
    TextWorkerDiedError,
)
from millrace_runtime.chat.jobs import FromTextWorker, WorkerReady, WorkerRefused
from millrace_runtime.chat.text_limits import TextLimits
from millrace_runtime.child_process import spawn
from millrace_runtime.protocol.encoding import FrameDecoder, FrameError

_READ_BYTES = 1 << 20


class WorkerProcess:
    """A living process and its socket."""

    def __init__(self, process: asyncio.subprocess.Process, sock: socket.socket, limits: TextLimits) -> None:
        self._process = process
        self._sock = sock
        self._limits = limits
        self._decoder: FrameDecoder[FromTextWorker] = FrameDecoder(FromTextWorker)  # type: ignore[arg-type]
        self._messages: list[FromTextWorker] = []
        self._exit = asyncio.create_task(process.wait())
        self._started_at = time.monotonic()
        self._has_answered = False

    @classmethod
    async def start(cls, model_path: Path, limits: TextLimits, module: str) -> "WorkerProcess":
        """Start a process and wait until it has loaded. Raises NoTextWorkerError and BadModelTextError."""
        try:
            child = await spawn(module, model_path, (limits.memory_bytes,), _environment(limits))
        except OSError as error:  # no process, memory or descriptor left
            raise NoTextWorkerError(f"the text worker's process can't be started: {error}") from error
        started = cls(*child, limits)
        try:
            await started._expect_ready()
        except BaseException:
            await started.kill()
            raise
        return started

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self._exit.done()

    @property
    def is_proven(self) -> bool:
        """Whether it has answered a job or has lived long. If not, the next process may fail the same way."""
        return self._has_answered or time.monotonic() - self._started_at >= self._limits.proof_seconds

    def call_at_end(self, callback: Callable[[], None]) -> None:
        """Call `callback` once the process has ended."""
        self._exit.add_done_callback(lambda _: callback())

    async def ask(self, frame: bytes) -> FromTextWorker:
        """Return the answer to a job's frame.

        After TextTimeoutError and TextWorkerDiedError the process can't be used any more.
        """
        try:
            async with asyncio.timeout(self._limits.job_seconds):
                await asyncio.get_running_loop().sock_sendall(self._sock, frame)
                answer = await self._receive()
        except TimeoutError as error:
            raise TextTimeoutError(
                f"rendering and tokenising the prompt took longer than {self._limits.job_seconds:g} s"
            ) from error
        except (EOFError, OSError, FrameError) as error:
            raise TextWorkerDiedError("the text worker ended while it handled this prompt") from error
        self._has_answered = True
        return answer

    async def kill(self) -> None:
        """End the process and wait until it is gone."""
        self._sock.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await asyncio.shield(self._exit)

    async def _expect_ready(self) -> None:
        try:
            async with asyncio.timeout(self._limits.start_seconds):
                first = await self._receive()
        except (TimeoutError, EOFError, OSError, FrameError) as error:
            raise NoTextWorkerError("the text worker did not start") from error
        if isinstance(first, WorkerRefused):
            raise BadModelTextError(first.message)
        if not isinstance(first, WorkerReady):
            raise NoTextWorkerError("the text worker's first message does not say that it is ready")

    async def _receive(self) -> FromTextWorker:
        while not self._messages:
            data = await asyncio.get_running_loop().sock_recv(self._sock, _READ_BYTES)
            if not data:
                raise EOFError("the text worker closed its socket")
            self._messages += self._decoder.feed(data)
        return self._messages.pop(0)


def _environment(limits: TextLimits) -> dict[str, str]:
    return {
        "RAYON_NUM_THREADS": str(limits.num_threads),
        "TOKENIZERS_PARALLELISM": "true",
        "MALLOC_ARENA_MAX": "2",  # each arena reserves memory that would count
    }
