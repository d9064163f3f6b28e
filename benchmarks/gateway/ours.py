"""Our gateway as it runs in a cluster, before a fake API server that has services and their replicas' pods.

All its features are on: clients show a key and have limits, replicas get the gateway's token and report what
each answer uses, and each request is a line of the access log.
"""

import asyncio
import base64
import json
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web

from benchmarks.gateway.process import GATEWAY_CORE, Process, running
from millrace_runtime.contract import (
    ANNOTATION_LEAVING,
    ANNOTATION_PROOF,
    FLAG_GATEWAY_KEY,
    FLAG_SERVED_NAME,
    FLAG_SERVICE,
    LABEL_API_KEYS,
    LEASE_OPERATOR,
    SECRET_GATEWAY_KEY,
)
from millrace_runtime.gateway_token import find_public_key, generate_key
from testing.api_server import FakeApiServer

SERVICES = "/apis/millrace.dev/v1alpha1/inferenceservices"
PODS = "/api/v1/pods"
SECRETS = "/api/v1/namespaces/{}/secrets"
NAMESPACE, OWN_NAMESPACE = "bench", "millrace-system"
"""Of the services, and of the gateway."""
CLIENT_KEY = "mr-" + "k" * 43
LIMIT = 10**9
"""It is counted, and never reached."""
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

    def __init__(self, **clients: str) -> None:
        """`clients` are the keys of clients by their names; CLIENT_KEY where there are none."""
        self._clients = clients or {"one": CLIENT_KEY}
        self._fake = _WithLease()
        self._loop = asyncio.new_event_loop()
        self._private_key = generate_key()
        self.public_key = find_public_key(self._private_key)
        """By which replicas know the gateway."""
        self._runner: web.AppRunner
        self.port = 0

    @contextmanager
    def serve(self) -> Iterator[None]:
        """Serve while entered."""
        thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        thread.start()
        try:
            self._run(self._start)
            clients = {name: hash_key(key) for name, key in self._clients.items()}
            self.put(SECRETS.format(NAMESPACE), make_secret(NAMESPACE, "keys", clients))
            signing = make_secret(OWN_NAMESPACE, SECRET_GATEWAY_KEY, {"one": self._private_key})
            self.put(SECRETS.format(OWN_NAMESPACE), signing)
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


def hash_key(key: str) -> bytes:
    """Return the entry of a client's key in a Secret."""
    return json.dumps({"sha256": [sha256(key.encode()).hexdigest()]}).encode()


def make_secret(namespace: str, name: str, entries: Mapping[str, bytes]) -> dict[str, Any]:
    """Return a Secret."""
    metadata = {"namespace": namespace, "name": name, "uid": name, "labels": {LABEL_API_KEYS: "true"}}
    return {
        "metadata": metadata,
        "data": {entry: base64.b64encode(value).decode() for entry, value in entries.items()},
    }


def make_service(name: str, **scaling: object) -> dict[str, Any]:
    """Return a service of the namespace `bench`."""
    metadata = {
        "namespace": NAMESPACE,
        "name": name,
        "uid": name,
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    figures = {"requestsPerMinute": LIMIT, "tokensPerMinute": LIMIT, "concurrency": LIMIT}
    access = {
        "authentication": {"mode": "APIKey", "secretName": "keys"},
        "rateLimits": [{"per": per, **figures} for per in ("Key", "Service")],
    }
    return {
        "metadata": metadata | {"resourceVersion": "1"},
        "spec": {"model": {"uri": "file:///m"}, "scaling": scaling, "access": access},
        "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Serving"}]},
    }


def make_pod(
    service: str,
    uid: str,
    address: str,
    public_key: str,
    *,
    is_leaving: bool = False,
    is_deleted: bool = False,
) -> dict[str, Any]:
    """Return the pod of a Ready replica, which may be marked to leave, or be asked to end."""
    labels = {"millrace.dev/service": service, "millrace.dev/component": "replica"}
    arguments = [FLAG_SERVED_NAME, service, FLAG_SERVICE, f"{NAMESPACE}/{service}"]
    arguments += [f"{FLAG_GATEWAY_KEY}={public_key}"]
    marks = {ANNOTATION_LEAVING: "2026-01-01T00:00:00Z"} if is_leaving else {}
    metadata = {"namespace": NAMESPACE, "name": uid, "uid": uid, "labels": labels, "annotations": marks}
    return {
        "metadata": metadata | ({"deletionTimestamp": "2026-01-01T00:00:00Z"} if is_deleted else {}),
        "spec": {"containers": [{"name": "replica", "args": arguments}]},
        "status": {"podIP": address, "conditions": [{"type": "Ready", "status": "True"}]},
    }


@contextmanager
def serve_gateway(
    api: Api, port: int, metrics_port: int, folder: Path, module: str = "benchmarks.gateway.in_pod"
) -> Iterator[Process]:
    """Run the gateway on its core while entered. `module` is what starts it."""
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(json.dumps(_make_kubeconfig(f"http://127.0.0.1:{api.port}")))
    command = [sys.executable, "-m", module, "--host", "127.0.0.1"]
    command += ["--port", str(port), "--metrics-port", str(metrics_port), "--peers-port", "0"]
    command += ["--access-log", "--secret-namespaces", NAMESPACE]
    environment = {"KUBECONFIG": str(kubeconfig), "POD_NAMESPACE": OWN_NAMESPACE}
    with running(command, GATEWAY_CORE, folder / "millrace.log", environment=environment) as process:
        yield process


def _make_kubeconfig(server: str) -> dict[str, Any]:
    return {
        "current-context": "bench",
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        "clusters": [{"name": "bench", "cluster": {"server": server}}],
        "users": [{"name": "bench", "user": {}}],
    }
