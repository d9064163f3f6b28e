"""Our gateway as it runs in a cluster, before a fake API server that has a service and its replicas' pods."""

import asyncio
import json
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web

from benchmarks.gateway.process import GATEWAY_CORE, Process, running
from millrace_runtime.contract import ANNOTATION_LEAVING, ANNOTATION_PROOF, LEASE_OPERATOR
from testing.api_server import FakeApiServer

SERVICES = "/apis/millrace.dev/v1alpha1/inferenceservices"
PODS = "/api/v1/pods"
LEADER_TOKEN = "the-leading-operators"  # noqa: S105  of nobody
PROOF = sha256(LEADER_TOKEN.encode()).hexdigest()
Result = TypeVar("Result")


class _WithLease(FakeApiServer):
    """It also has the operator's Lease, which says whose token opens the gateway's loads."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        if request.path.endswith(f"/leases/{LEASE_OPERATOR}"):
            return web.json_response({"metadata": {"annotations": {ANNOTATION_PROOF: PROOF}}})
        return await super().handle(request)


class Api:
    """A fake API server in a thread of its own. Its objects are changed from any thread."""

    def __init__(self) -> None:
        self._fake = _WithLease()
        self._loop = asyncio.new_event_loop()
        self._runner: web.AppRunner
        self.port = 0

    @contextmanager
    def serve(self) -> Iterator[None]:
        """Serve while entered."""
        thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        thread.start()
        try:
            self._run(self._start)
            yield
        finally:
            self._run(self._runner.cleanup)
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()
            self._loop.close()

    def put(self, path: str, item: dict[str, Any]) -> None:
        """Add an object, or replace it."""
        self._run_sync(lambda: self._fake.put(path, item))

    def remove(self, path: str, item: dict[str, Any]) -> None:
        """Delete an object."""
        self._run_sync(lambda: self._fake.remove(path, item))

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._fake.handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]

    def _run_sync(self, work: Callable[[], None]) -> None:
        async def run() -> None:
            work()

        self._run(run)

    def _run(self, work: Callable[[], Awaitable[Result]]) -> Result:
        async def run() -> Result:
            return await work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()


def make_service(name: str, **scaling: object) -> dict[str, Any]:
    """Return a service of the namespace `bench`."""
    metadata = {"namespace": "bench", "name": name, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {
        "metadata": metadata | {"resourceVersion": "1"},
        "spec": {"model": {"uri": "file:///m"}, "scaling": scaling},
        "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Serving"}]},
    }


def make_pod(
    service: str, uid: str, address: str, *, is_leaving: bool = False, is_deleted: bool = False
) -> dict[str, Any]:
    """Return the pod of a Ready replica, which may be marked to leave, or be told to end."""
    labels = {"millrace.dev/service": service, "millrace.dev/component": "replica"}
    marks = {ANNOTATION_LEAVING: "2026-01-01T00:00:00Z"} if is_leaving else {}
    metadata = {"namespace": "bench", "name": uid, "uid": uid, "labels": labels, "annotations": marks}
    return {
        "metadata": metadata | ({"deletionTimestamp": "2026-01-01T00:00:00Z"} if is_deleted else {}),
        "spec": {"containers": [{"name": "replica", "args": ["--served-name", service]}]},
        "status": {"podIP": address, "conditions": [{"type": "Ready", "status": "True"}]},
    }


@contextmanager
def serve_gateway(api: Api, port: int, metrics_port: int, folder: Path) -> Iterator[Process]:
    """Run the gateway on its core while entered."""
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(json.dumps(_make_kubeconfig(f"http://127.0.0.1:{api.port}")))
    command = [str(Path(sys.executable).with_name("millrace")), "gateway", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--metrics-port", str(metrics_port)]
    environment = {"KUBECONFIG": str(kubeconfig), "POD_NAMESPACE": "millrace-system"}
    with running(command, GATEWAY_CORE, folder / "millrace.log", environment=environment) as process:
        yield process


def _make_kubeconfig(server: str) -> dict[str, Any]:
    return {
        "current-context": "bench",
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        "clusters": [{"name": "bench", "cluster": {"server": server}}],
        "users": [{"name": "bench", "user": {}}],
    }
