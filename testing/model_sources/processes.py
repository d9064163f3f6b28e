"""The command in a process of its own, which is forked from one that has its libraries, or is a new one."""

import asyncio
import atexit
import json
import os
import signal
import socket
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from tests.fetch.fork_server import ID

MILLRACE = Path(sys.executable).with_name("millrace")
_ROOT = Path(__file__).resolve().parents[2]


class Forked:
    """A process of the fork server, which is waited for and ended as one that asyncio has started."""

    def __init__(
        self, pid: int, status: int, stdout: asyncio.StreamReader, stderr: asyncio.StreamReader
    ) -> None:
        self.pid, self.stdout, self.stderr = pid, stdout, stderr
        self.returncode: int | None = None
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(status, self._end, status)

    def _end(self, status: int) -> None:
        asyncio.get_running_loop().remove_reader(status)
        self.returncode = int(os.read(status, 100))
        os.close(status)
        self._ended.set()

    async def wait(self) -> int | None:
        await self._ended.wait()
        return self.returncode

    async def communicate(self) -> tuple[bytes, bytes]:
        out, err, _ = await asyncio.gather(self.stdout.read(), self.stderr.read(), self.wait())
        return out, err

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


async def start_fetch(uri: str, folder: Path, *flags: str, before: str = "", **environment: str) -> Forked:
    return await start_command(uri, "--to", str(folder), *flags, before=before, **environment)


async def start_command(uri: str, *flags: str, before: str = "", **environment: str) -> Forked:
    """Run the command as it is forked, and before that a few lines of Python in its process."""
    request = {
        "arguments": [str(MILLRACE), "fetch", uri, *flags],
        "before": before,
        "environment": os.environ | environment,
        "folder": str(Path.cwd()),
    }
    return await _fork(request)


async def execute_fetch(
    uri: str, folder: Path, *flags: str, prefix: tuple[str, ...] = (), **environment: str
) -> Process:
    """Run the command as it is installed, or behind the words of another that runs it."""
    arguments = [*prefix, str(MILLRACE), "fetch", uri, "--to", str(folder), *flags]
    return await asyncio.create_subprocess_exec(
        *arguments, env=os.environ | environment, stdout=PIPE, stderr=PIPE
    )


async def _fork(request: dict[str, Any]) -> Forked:
    pipes = [os.pipe() for _ in ("out", "err", "status")]
    text = json.dumps(request).encode()
    socket.send_fds(_start_server(), [text], [end for _, end in pipes])
    for _, end in pipes:
        os.close(end)
    out, err, status = (begin for begin, _ in pipes)
    (pid,) = ID.unpack(os.read(status, ID.size))
    return Forked(pid, status, await _open(out), await _open(err))


async def _open(descriptor: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
    )
    return reader


@cache
def _start_server() -> socket.socket:
    """Start the fork server, which ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", "tests.fetch.fork_server", str(theirs.fileno())]
        server = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


async def until(is_so: Callable[[], bool]) -> None:
    """Another process sets no event of ours. Raises TimeoutError after a minute."""
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def finish(process: Process | Forked) -> tuple[int | None, str, str]:
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()
