"""The watches: Kopf follows the services, and our own watch follows all that belongs to them.

Kopf has a thread and an event loop of its own. In our loop it would handle the signals, and at its end it
would cancel every task that started after it, our workers among them. It ends on watch errors that it does
not know; then we start it again. It never calls a failed event handler again, so the handler does no I/O.

Kopf makes tasks, copies and searches for handlers of each event: 43 % of the operator's CPU time while 1,000
services got their 6,000 children, and most of a start. So children, pods and nodes are listed and watched in
our own loop.
"""

import asyncio
import dataclasses
import itertools
import logging
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import kopf
import uvloop
from kopf._core.engines.peering import Identity

from millrace_kubernetes.collection import Object, Source
from millrace_kubernetes.connection import Connection
from millrace_kubernetes.watch import Watch
from millrace_operator.controller.relister import find_selector
from millrace_operator.controller.watch_recorder import WatchRecorder
from millrace_operator.kube.answers import compact
from millrace_operator.kube.errors import ClusterError
from millrace_operator.kube.kinds import (
    INFERENCE_SERVICE,
    Kind,
    Listing,
    Obj,
    Role,
    Scope,
)
from millrace_operator.kube.protocol import Cluster

LOG = logging.getLogger(__name__)
RESTART_SECONDS = 2.0
RESOURCE_RETRY_SECONDS = 2.0
MAX_BACKOFF_SECONDS = 10.0
"""The longest pause between two attempts while the API server is away."""
OPTIONAL_BACKOFF_SECONDS = 60.0
"""The longest pause between two attempts at an optional kind that is absent or may not be read."""
RecordEvent = Callable[[Kind, str | None, Obj], None]
"""Called with the kind, the event's type (None: a first listing) and the object."""


async def supervise_watches(recorder: WatchRecorder, scope: Scope, cluster: Cluster) -> None:
    """Run Kopf for the services of a scope until cancelled, and start it again whenever it ends.

    Each namespace has a Kopf of its own: Kopf ends if one of its namespaces may not be read.

    Kopf looks for the resources only when it starts. So each start waits until they can be listed.
    """
    while True:
        await _wait_for_resource(scope, cluster)
        try:
            await run_watches(recorder, scope.namespace)
            LOG.warning("Kopf's watch ended; starting it again")
        except Exception:
            # Without watches the operator is blind, so we start Kopf again after any error.
            LOG.exception("Kopf's watch failed; starting it again")
        await asyncio.sleep(RESTART_SECONDS)


async def _wait_for_resource(scope: Scope, cluster: Cluster) -> None:
    """Wait until the API server lists InferenceServices: the CRD or a Role may come later."""
    logged = ""
    while True:
        try:
            await cluster.fetch_all(scope)
        except ClusterError as error:
            if str(error) != logged:
                LOG.warning("no InferenceServices to watch yet (is the CRD installed?): %s", error)
            logged = str(error)
            await asyncio.sleep(RESOURCE_RETRY_SECONDS)
        else:
            return


async def run_watches(recorder: WatchRecorder, namespace: str | None) -> None:
    """Run Kopf once, without peering and without handlers that write."""
    loop = asyncio.get_running_loop()
    stop = threading.Event()

    def record_event(kind: Kind, event_type: str | None, raw: Obj) -> None:
        loop.call_soon_threadsafe(_record, recorder, kind, event_type, raw)

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

    # A thread of its own: the loop's own few threads also resolve host names.
    thread = ThreadPoolExecutor(1, "kopf")
    try:
        await loop.run_in_executor(thread, run)
    finally:
        stop.set()
        thread.shutdown(wait=False)


def _record(recorder: WatchRecorder, kind: Kind, event_type: str | None, raw: Obj) -> None:
    """Record an event of Kopf's. If that fails, log it and have the services listed instead."""
    try:
        recorder.record_event(kind, event_type, raw)
    except Exception:
        recorder.has_lost.set()
        name = f"{raw['metadata'].get('namespace')}/{raw['metadata'].get('name')}"
        LOG.exception(
            "cannot record an event, so the operator lists the services again soon: %s of %s",
            event_type or "first",
            name,
        )


def build_registry(record_event: RecordEvent) -> kopf.OperatorRegistry:
    """Return a registry with the login and a handler of the services' events."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)  # type: ignore[untyped-decorator]
    def login(**kwargs: Any) -> Any:
        found = kopf.login_with_service_account(**kwargs)
        return kopf.login_with_kubeconfig(**kwargs) if found is None else _at_service_address(found)

    kind = INFERENCE_SERVICE

    @kopf.on.event(kind.group, kind.version, kind.plural, registry=registry)  # type: ignore[untyped-decorator]
    async def handle(event: Any, **_: Any) -> None:
        record_event(kind, event["type"], event["object"])  # the cache copies the object

    return registry


def _at_service_address(found: Any) -> Any:
    """Return the login with the API server's address instead of a DNS name, as our other client uses it."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        return found
    return dataclasses.replace(found, server=f"https://{f'[{host}]' if ':' in host else host}:{port}")


def build_settings() -> kopf.OperatorSettings:
    """Return settings with which Kopf only watches: no scanning, no posting."""
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.persistence.diffbase_storage = NoEssence()
    settings.watching.chunk_size = 500
    settings.queueing.idle_timeout = 1.0
    settings.watching.server_timeout = 300
    settings.networking.error_backoffs = Backoffs()
    return settings


def _draw_waits() -> Iterator[float]:
    """Yield, without end, the seconds between two attempts while the API server is away: at most 10."""
    first = (0.5, 1.0, 2.0, 4.0)
    return (wait * random.uniform(0.8, 1.2) for wait in itertools.chain(first, itertools.repeat(8.0)))  # noqa: S311


class Backoffs:
    """The waits as Kopf needs them: it iterates over them once for each request."""

    def __iter__(self) -> Iterator[float]:
        return _draw_waits()


class NoEssence(kopf.DiffBaseStorage):  # type: ignore[misc]
    """Stores nothing for handlers of differences, which don't exist. Kopf would copy each object for them."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        """Return nothing."""
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> None:
        """Return nothing."""

    def store(self, **_: Any) -> None:
        """Store nothing."""


async def follow_children(recorder: WatchRecorder, connection: Connection) -> None:
    """Follow each kind until cancelled."""
    async with asyncio.TaskGroup() as group:
        for scope in recorder.lists.scopes:
            if scope.kind.role is Role.SERVICE:
                continue
            recorder.expect_list(scope)
            group.create_task(_make_watch(scope, recorder, connection).run())


def _make_watch(scope: Scope, recorder: WatchRecorder, connection: Connection) -> Watch:
    is_optional = scope.kind.is_optional
    return Watch(
        connection,
        Source(scope.kind.path(scope.namespace), find_selector(scope) or "", scope.kind.trim, compact),
        ChildSink(scope, recorder),
        max_backoff_seconds=OPTIONAL_BACKOFF_SECONDS if is_optional else MAX_BACKOFF_SECONDS,
        on_refused=partial(recorder.lists.give_up, scope),
        on_life=partial(recorder.health.note_life, scope),
        on_failure=partial(recorder.health.note_failure, scope),
        is_optional=is_optional,
    )


class ChildSink:
    """Passes on what the watch of a kind reports."""

    def __init__(self, scope: Scope, recorder: WatchRecorder) -> None:
        self._scope = scope
        self._kind = scope.kind
        self._recorder = recorder

    def replace(self, items: Sequence[Object], version: str) -> None:
        """Replace all objects of the scope with this complete list."""
        objects = [{**item, "apiVersion": self._kind.api_version, "kind": self._kind.kind} for item in items]
        self._recorder.record_list(self._scope, Listing(objects, int(version)))

    def apply(self, item: Object) -> None:
        """Add an object, or replace it with this newer version."""
        self._recorder.record_event(self._kind, "MODIFIED", item)

    def delete(self, item: Object) -> None:
        """Remove an object."""
        self._recorder.record_event(self._kind, "DELETED", item)
