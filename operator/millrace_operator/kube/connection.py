"""The real API server, by raw manifests over HTTP.

The typed models of the `kubernetes` client drop unknown fields, so objects stay raw.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self
from urllib.parse import urlencode

import aiohttp
from yarl import URL

from millrace_kubernetes.connection_failures import describe_failure
from millrace_kubernetes.errors import AccessError
from millrace_operator.kube.answers import parse_answer, raise_for_status, read_object, read_page
from millrace_operator.kube.credentials import Access
from millrace_operator.kube.errors import (
    AbsentError,
    ExpiredError,
    NotLeaderError,
    TransientError,
)
from millrace_operator.kube.kinds import (
    EVENT,
    INFERENCE_SERVICE,
    LEASE,
    POD,
    Kind,
    Listing,
    Obj,
    Scope,
    kind_of,
)
from millrace_operator.kube.protocol import Cluster
from millrace_operator.kube.requests import TokenBucket, encode_body

FIELD_MANAGER = "millrace-operator"
APPLY_QUERY = {"fieldManager": FIELD_MANAGER, "force": "true"}
APPLY_TYPE = "application/apply-patch+yaml"
MERGE_TYPE = "application/merge-patch+json"
LIST_CHUNK = 500
WRITES_PER_SECOND = 50.0
BURST = 100
TIMEOUT_SECONDS = 15.0
LONGEST_PAUSE_SECONDS = 60.0
"""The longest pause of all writes that the server may ask for. After it we ask again."""
LIST_TRIES = 3
"""Attempts at a long list: the server may forget its pages while we read it."""
UNTIMED = aiohttp.ClientTimeout()
"""aiohttp's own time limit loses a cancellation: see `millrace_kubernetes.connection`."""
CREATE_ONLY_VERSION = "1"
"""No live object has this resourceVersion: an apply with it creates the object, or is a 409."""


class ApiServer(Cluster):
    """The API server over HTTP. Every write except those of the Lease first asks how long it may take."""

    def __init__(
        self,
        access: Access,
        *,
        seconds_to_write: Callable[[], float],
        writes_per_second: float = WRITES_PER_SECOND,
        on_request: Callable[[str, int], None] = lambda _method, _code: None,
    ) -> None:
        self._access = access
        self._seconds_to_write = seconds_to_write
        self._on_request = on_request
        self._bucket = TokenBucket(writes_per_second, BURST, time.monotonic())
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(ssl=self._access.tls, limit=32)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=UNTIMED, cookie_jar=aiohttp.DummyCookieJar()
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def fetch(self, kind: Kind, namespace: str, name: str) -> Obj | None:
        path = kind.path(namespace, name)
        try:
            answer = await self._send("GET", path)
        except AbsentError:
            return None
        return read_object(kind, answer, f"GET {path}")

    async def fetch_all(self, scope: Scope, label_selector: str | None = None) -> Listing:
        """List in chunks of LIST_CHUNK. A list that expires meanwhile is repeated, with LIST_TRIES in all."""
        for _ in range(LIST_TRIES - 1):
            try:
                return await self._fetch_pages(scope, label_selector)
            except ExpiredError:
                continue
        return await self._fetch_pages(scope, label_selector)

    async def _fetch_pages(self, scope: Scope, label_selector: str | None) -> Listing:
        kind = scope.kind
        found: list[Obj] = []
        query = {"limit": str(LIST_CHUNK)}
        if label_selector:
            query["labelSelector"] = label_selector
        while True:
            page = read_page(kind, await self._send("GET", kind.path(scope.namespace), query=query))
            found += page.objects
            if not page.token:
                return Listing(found, page.version)
            query["continue"] = page.token

    async def apply_new(self, obj: Obj) -> Obj:
        return await self._apply(obj, {"resourceVersion": CREATE_ONLY_VERSION})

    async def apply_owned(self, obj: Obj, uid: str, version: str | None = None) -> Obj:
        return await self._apply(obj, _name_seen(uid, version))

    async def apply_status(self, obj: Obj) -> Obj:
        return await self._apply(obj, {}, "status")

    async def write_scale(self, service: Obj, replicas: int) -> None:
        """Patch the count: a PUT needs a GET before, which fails while there is no count."""
        metadata = service["metadata"]
        path = INFERENCE_SERVICE.path(metadata["namespace"], metadata["name"], "scale")
        body = {
            "metadata": _name_seen(metadata["uid"], metadata["resourceVersion"]),
            "spec": {"replicas": replicas},
        }
        await self._write("PATCH", path, body, MERGE_TYPE, {"fieldManager": FIELD_MANAGER})

    async def annotate(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        uid: str,
        annotations: dict[str, str | None],
        *,
        version: str | None = None,
    ) -> Obj:
        """Annotate a pod by way of its status: that right does not include the pod's image."""
        body = {"metadata": {**_name_seen(uid, version), "annotations": annotations}}
        path = kind.path(namespace, name, "status" if kind is POD else "")
        answer = await self._write("PATCH", path, body, MERGE_TYPE, {"fieldManager": FIELD_MANAGER})
        return read_object(kind, answer, f"PATCH {path}")

    async def change_data(self, obj: Obj, data: dict[str, str | None]) -> Obj:
        kind, metadata = kind_of(obj), obj["metadata"]
        path = kind.path(metadata["namespace"], metadata["name"])
        body = {"metadata": _name_seen(metadata["uid"], metadata["resourceVersion"]), "data": data}
        answer = await self._write("PATCH", path, body, MERGE_TYPE, {"fieldManager": FIELD_MANAGER})
        return read_object(kind, answer, f"PATCH {path}")

    async def delete(
        self, kind: Kind, namespace: str, name: str, uid: str, version: str | None = None
    ) -> None:
        """Delete the object, and its dependents in the background."""
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": _name_seen(uid, version)}
        body["propagationPolicy"] = "Background"
        with contextlib.suppress(AbsentError):
            await self._write("DELETE", kind.path(namespace, name), body)

    async def create_event(self, event: Obj) -> Obj:
        path = EVENT.path(event["metadata"]["namespace"])
        return read_object(EVENT, await self._write("POST", path, event), f"POST {path}")

    async def change_event(self, namespace: str, name: str, fields: Obj) -> None:
        await self._write("PATCH", EVENT.path(namespace, name), fields, MERGE_TYPE)

    async def create_lease(self, lease: Obj) -> Obj:
        path = LEASE.path(lease["metadata"]["namespace"])
        return read_object(LEASE, await self._send("POST", path, body=lease), f"POST {path}")

    async def replace_lease(self, lease: Obj) -> Obj:
        path = LEASE.path(lease["metadata"]["namespace"], lease["metadata"]["name"])
        return read_object(LEASE, await self._send("PUT", path, body=lease), f"PUT {path}")

    async def _apply(self, obj: Obj, metadata: dict[str, str], subresource: str = "") -> Obj:
        body = {**obj, "metadata": {**obj["metadata"], **metadata}}
        kind, names = kind_of(obj), body["metadata"]
        path = kind.path(names["namespace"], names["name"], subresource)
        answer = await self._write("PATCH", path, body, APPLY_TYPE, APPLY_QUERY)
        return read_object(kind, answer, f"PATCH {path}")

    async def _write(
        self,
        method: str,
        path: str,
        body: Obj,
        content_type: str = "application/json",
        query: dict[str, str] | None = None,
    ) -> Obj:
        """Write while the Lease is held. Return the answer, which need not be an object."""
        await self._take_turn()
        seconds = min(self._seconds_to_write(), TIMEOUT_SECONDS)
        if seconds <= 0:
            raise NotLeaderError("the Lease ran out before this write; it was not sent")
        # The server gives up by then too, so that no write lands after we have stopped waiting for it.
        query = {**(query or {}), "timeout": f"{int(seconds * 1000)}ms"}
        try:
            return await self._send(method, path, body, content_type, query, seconds=seconds)
        except TransientError as error:
            pause = min(error.retry_after_seconds or 0.0, LONGEST_PAUSE_SECONDS)
            self._bucket.pause(time.monotonic() + pause)
            raise

    async def _take_turn(self) -> None:
        """Wait for a token, and for the end of a pause that the API server has asked for."""
        wait = self._bucket.reserve(time.monotonic())
        while wait > 0:
            await asyncio.sleep(wait)
            wait = self._bucket.pause_left(time.monotonic())  # a pause may have begun meanwhile

    async def _send(
        self,
        method: str,
        path: str,
        body: Obj | None = None,
        content_type: str = "application/json",
        query: dict[str, str] | None = None,
        *,
        seconds: float = TIMEOUT_SECONDS,
    ) -> Obj:
        if self._session is None:
            raise TransientError("not connected")
        data = None if body is None else encode_body(body)
        url = f"{self._access.server}{path}?{urlencode(query)}" if query else self._access.server + path
        try:
            headers = await self._access.headers()
            request = self._session.request(
                method,
                URL(url, encoded=True),
                data=data,
                headers={**headers, "Content-Type": content_type, "Accept": "application/json"},
            )
            async with asyncio.timeout(seconds), request as response:
                content = await response.read()
                self._on_request(method, response.status)
                raise_for_status(response.status, content, response.headers.get("Retry-After"))
        except (aiohttp.ClientError, AccessError, OSError) as error:  # TimeoutError is an OSError
            self._on_request(method, 0)
            raise TransientError(f"{method} {path}: {describe_failure(error)}") from error
        return parse_answer(content, f"{method} {path}")


def _name_seen(uid: str, version: str | None) -> dict[str, str]:
    """Return the uid of the object that a write is meant for, and its version if one is given."""
    return {"uid": uid} if version is None else {"uid": uid, "resourceVersion": version}
