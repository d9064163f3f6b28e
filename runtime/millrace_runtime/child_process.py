"""Starts a module of ours as a child process that talks over a socket."""

import asyncio
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple


class Child(NamedTuple):
    """A child process and our end of its socket, which does not block."""

    process: asyncio.subprocess.Process
    sock: socket.socket


async def spawn(
    module: str, model_path: Path, rest: Sequence[object], environment: Mapping[str, str]
) -> Child:
    """Run `python -m module MODEL_PATH PARENT_PID SOCKET_FD REST…` with more variables in its environment.

    Raises OSError where no process, memory or descriptor is left.
    """
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    arguments = (model_path, os.getpid(), theirs.fileno(), *rest)
    try:
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", module, *map(str, arguments)),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=os.environ | environment,
            )
    except BaseException:
        ours.close()
        raise
    return Child(process, ours)
