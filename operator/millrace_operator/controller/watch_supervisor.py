"""Keeps the watch of services alive: Kopf ends on watch errors that it does not know, and is started again.

Kopf has a thread and an event loop of its own. In our loop it would handle the signals, and at its end it
would cancel every task that started after it, our workers among them.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import kopf
import uvloop
from kopf._core.engines.peering import Identity

from millrace_operator.controller.handlers import Ingest, build_registry, build_settings
from millrace_operator.kube.kinds import Kind, Obj

LOG = logging.getLogger(__name__)
RESTART_SECONDS = 2.0


async def supervise_watches(
    ingest: Ingest, namespace: str | None, wait_for_resource: Callable[[], Awaitable[None]]
) -> None:
    """Run Kopf for a namespace, None: for all, until cancelled, and start it again whenever it ends.

    Each namespace has a Kopf of its own: it ends where one may not be read, and would end for all.

    Kopf looks for the resources only when it starts. So `wait_for_resource` is awaited before each start.
    """
    while True:
        await wait_for_resource()
        try:
            await run_watches(ingest, namespace)
            LOG.warning("the watch layer ended; it is started again")
        except Exception:
            # Whatever ended it: without watches the operator is blind, so it always begins again.
            LOG.exception("the watch layer failed; it is started again")
        await asyncio.sleep(RESTART_SECONDS)


def _record(ingest: Ingest, kind: Kind, event_type: str | None, raw: Obj) -> None:
    """Record an event of Kopf's. One that fails is told, and the services are listed: that brings it."""
    try:
        ingest.record_event(kind, event_type, raw)
    except Exception:
        ingest.has_lost.set()
        name = f"{raw['metadata'].get('namespace')}/{raw['metadata'].get('name')}"
        LOG.exception(
            "an event is lost, and the services are listed to make up for it: %s of %s",
            event_type or "first",
            name,
        )


async def run_watches(ingest: Ingest, namespace: str | None) -> None:
    """Run Kopf once, without peering and without handlers that write."""
    loop = asyncio.get_running_loop()
    stop = threading.Event()

    def record_event(kind: Kind, event_type: str | None, raw: Obj) -> None:
        loop.call_soon_threadsafe(_record, ingest, kind, event_type, raw)

    async def watch() -> None:
        try:
            await kopf.operator(
                registry=build_registry(record_event),
                settings=build_settings(),
                standalone=True,
                clusterwide=namespace is None,
                namespaces=[] if namespace is None else [namespace],
                stop_flag=stop,
                # Unused when standalone, but without it Kopf asks for a user name, and a container has none.
                identity=Identity("millrace-operator"),
            )
        finally:
            stop.set()  # Kopf waits for it in a thread, and the loop's end waits for that thread

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(watch())

    # A thread of its own: the loop's own few are also those that look names up.
    thread = ThreadPoolExecutor(1, "kopf")
    try:
        await loop.run_in_executor(thread, run)
    finally:
        stop.set()
        thread.shutdown(wait=False)
