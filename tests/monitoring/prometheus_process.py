"""A Prometheus of a test's own, on loopback, its data in the test's folder."""

import asyncio
import json
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from e2e.cluster.settings import free_ports

READY_SECONDS = 60.0


@asynccontextmanager
async def run_prometheus(program: Path, folder: Path, config: dict[str, Any]) -> AsyncIterator[str]:
    """Run one while entered, and yield its address once it is ready."""
    port = free_ports().prometheus
    (folder / "prometheus.json").write_text(json.dumps(config))
    flags = {
        "config.file": folder / "prometheus.json",
        "storage.tsdb.path": folder / "data",
        "web.listen-address": f"127.0.0.1:{port}",
    }
    words = [f"--{name}={value}" for name, value in flags.items()]
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(program, *words, stdout=log, stderr=log)
    try:
        await wait_until_ready(process, f"http://127.0.0.1:{port}/-/ready", folder / "log")
        yield f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def wait_until_ready(process: Process, url: str, log: Path) -> None:
    """Wait for the answer 200. It listens before: until it has read its data, its API answers 503 too."""
    async with aiohttp.ClientSession() as http, asyncio.timeout(READY_SECONDS):
        while process.returncode is None:
            try:
                async with http.get(url) as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass  # it does not listen yet
            await asyncio.sleep(0.1)
    raise AssertionError(f"Prometheus ended with {process.returncode}: {read_end(log)}")


def read_end(log: Path) -> str:
    return log.read_text()[-2000:]
