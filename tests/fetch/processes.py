"""The real command in a process of its own."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from pathlib import Path

MILLRACE = Path(sys.executable).with_name("millrace")


async def start_fetch(
    uri: str, folder: Path, *flags: str, prefix: tuple[str, ...] = (), **environment: str
) -> Process:
    return await start_command(uri, "--to", str(folder), *flags, prefix=prefix, **environment)


async def start_command(uri: str, *flags: str, prefix: tuple[str, ...] = (), **environment: str) -> Process:
    arguments = [*prefix, str(MILLRACE), "fetch", uri, *flags]
    return await asyncio.create_subprocess_exec(
        *arguments, env=os.environ | environment, stdout=PIPE, stderr=PIPE
    )


async def until(is_so: Callable[[], bool]) -> None:
    """Another process sets no event of ours."""
    while not is_so():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def finish(process: Process) -> tuple[int | None, str, str]:
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()
