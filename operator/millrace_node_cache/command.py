"""`millrace node-cache`: keeps models on this node's disk, and evicts them when it is full."""

import argparse
import asyncio
import logging
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from millrace_kubernetes.access import ClusterAccess, load_access
from millrace_kubernetes.connection import Connection
from millrace_kubernetes.errors import AccessError
from millrace_kubernetes.flags import parse_namespaces
from millrace_node_cache.agent import Agent
from millrace_node_cache.cluster import Cluster
from millrace_node_cache.disk import Disk
from millrace_node_cache.metrics import Metrics
from millrace_node_cache.plan import Limit, parse_limit
from millrace_node_cache.server import BadStartError, serve
from millrace_runtime.contract import EXIT_BAD_USAGE, PORT_NODE_CACHE
from millrace_runtime.listener import parse_port, read_bind_address

_EXIT_BROKEN = 1


@dataclass(frozen=True)
class Settings:
    """The settings, from the flags."""

    root: Path
    node: str
    namespaces: tuple[str, ...]
    limit: Limit
    look_seconds: float
    bind_address: str
    port: int


def main(argv: list[str]) -> int:
    """Run until SIGTERM or SIGINT, and return 0; 64 without usable credentials, 1 if it cannot start."""
    settings = read_settings(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        access = load_access(os.environ)
    except AccessError as error:
        return _fail(str(error), EXIT_BAD_USAGE)
    try:
        asyncio.run(_run_until_signal(settings, access))
    except BadStartError as error:
        return _fail(str(error), _EXIT_BROKEN)
    return 0


def read_settings(argv: list[str]) -> Settings:
    """Return the settings in the flags. Exits with 2 on a bad flag."""
    parser = argparse.ArgumentParser(prog="millrace node-cache", description=__doc__)
    add = parser.add_argument
    add("--root", type=Path, required=True, metavar="DIR", help="the folder on this node's disk")
    add(
        "--node",
        default=os.environ.get("NODE_NAME"),
        required="NODE_NAME" not in os.environ,
        metavar="NAME",
        help="this node (default: $NODE_NAME)",
    )
    add(
        "--namespaces",
        type=parse_namespaces,
        required=True,
        metavar="NAMES",
        help="the namespaces that keep models here, such as shop,search",
    )
    add(
        "--limit",
        type=_parse_limit,
        default="80%",
        help="evict while more than this is in use: a share of the disk, or bytes of models (default: 80%%)",
    )
    add(
        "--look-seconds",
        type=_parse_seconds,
        default=15.0,
        metavar="SECONDS",
        help="seconds between two looks at the disk (default: %(default)g)",
    )
    add(
        "--port",
        type=parse_port,
        default=PORT_NODE_CACHE,
        help="port of /metrics and /livez (default: %(default)s)",
    )
    flags = parser.parse_args(argv)
    return Settings(
        root=flags.root,
        node=flags.node,
        namespaces=flags.namespaces,
        limit=flags.limit,
        look_seconds=flags.look_seconds,
        bind_address=read_bind_address(os.environ),
        port=flags.port,
    )


def _parse_limit(text: str) -> Limit:
    try:
        return parse_limit(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _parse_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if 0.1 <= seconds <= 3600:
        return seconds
    raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds; write one from 0.1 to 3600")


async def _run_until_signal(settings: Settings, access: ClusterAccess) -> None:
    """Run until a signal. The Node keeps its labels, because the models stay."""
    task = asyncio.ensure_future(run(settings, access))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        logging.getLogger(__name__).info("stopped by a signal")


async def run(settings: Settings, access: ClusterAccess) -> None:
    """Look at the disk at each interval, until cancelled. Raises BadStartError if the port is taken."""
    metrics, looked_at = Metrics(), time.monotonic()
    async with (
        aiohttp.ClientSession(headers={"User-Agent": "millrace-node-cache"}) as session,
        serve(metrics.registry, lambda: time.monotonic() - looked_at, settings.bind_address, settings.port),
    ):
        cluster = Cluster(Connection(session, access), settings.node)
        agent = Agent(Disk(settings.root), cluster, settings.namespaces, settings.limit, metrics)
        while True:
            await agent.look()
            looked_at = time.monotonic()
            await asyncio.sleep(settings.look_seconds)


def _fail(reason: str, status: int) -> int:
    sys.stderr.write(f"millrace node-cache: {reason}\n")
    return status
