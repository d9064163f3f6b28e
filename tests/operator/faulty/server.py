"""An API server over real HTTP whose store is a FakeCluster, and which has the faults that a script says.

It translates: what is created, merged, refused or in conflict is decided by FakeCluster. A list comes in
pages of one moment, and a watch tells each change since a resourceVersion, and bookmarks between.
"""

import json
from collections.abc import Mapping

from aiohttp import web

from millrace_operator.kube.errors import AbsentError, ClusterError, ConflictError
from millrace_operator.kube.kinds import EVENT, LEASE, Obj
from tests.operator.faulty.address import Address, describe_api, is_selected, parse_address
from tests.operator.faulty.history import History
from tests.operator.faulty.script import Fault, Script
from tests.operator.faulty.stream import Stream

PAGE = 1
"""Objects of a page, however many were asked for: a server may give fewer."""
STALE_CHANGES = 4
"""How many changes a stale answer does not know yet."""
REASONS = {409: "Conflict", 410: "Expired", 422: "Invalid", 429: "TooManyRequests", 504: "Timeout"}


class FaultyServer:
    """Real HTTP at every path that the operator and Kopf use."""

    def __init__(self, store: History) -> None:
        self.store = store
        self.script = Script()
        self.requests: list[str] = []
        """Method and path of each; a watch is a WATCH."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        method = "WATCH" if request.query.get("watch") else request.method
        self.requests.append(f"{method} {request.path}")
        if found := describe_api(request.path):
            return web.json_response(found)
        address = parse_address(request.path)
        if address is None:
            return _tell_status(404, f"no such path: {request.path}")
        if request.method != "GET":
            return await self._write(request, address)
        if address.name:
            return self._get(address)
        if request.query.get("watch"):
            return await self._watch(request, address)
        return self._list(request.query, address)

    def _get(self, address: Address) -> web.Response:
        fault = None if address.kind is LEASE else self._take("get", address)
        if fault is not None and fault.status:
            return _tell_fault(fault.status)
        objects = self.store.read_at(self._version_of(is_stale=fault is Fault.GET_STALE))
        for obj in objects:
            if address.holds(obj) and obj["metadata"]["name"] == address.name:
                return web.json_response(obj)
        return _tell_status(404, f"{address.kind.plural} {address.name!r} not found")

    def _list(self, query: Mapping[str, str], address: Address) -> web.Response:
        token = query.get("continue", "")
        fault = self._take("page" if token else "list", address)
        if fault is not None and fault.status:
            return _tell_fault(fault.status)
        version, _, begin = token.partition(":")
        moment = int(version or self._version_of(is_stale=fault is Fault.LIST_STALE))
        selector = query.get("labelSelector", "")
        objects = [
            {name: value for name, value in obj.items() if name not in ("kind", "apiVersion")}
            for obj in self.store.read_at(moment)
            if address.holds(obj) and is_selected(obj, selector)
        ]
        end = int(begin or 0) + PAGE
        metadata = {
            "resourceVersion": str(moment),
            "continue": f"{moment}:{end}" if end < len(objects) else "",
        }
        return web.json_response(
            {
                "kind": f"{address.kind.kind}List",
                "apiVersion": address.kind.api_version,
                "metadata": metadata,
                "items": objects[int(begin or 0) : end],
            }
        )

    async def _watch(self, request: web.Request, address: Address) -> web.StreamResponse:
        fault = self._take("watch", address)
        if fault is not None and fault.status:
            return _tell_fault(fault.status)
        return await Stream(self.store, self.script, address, request).run()

    async def _write(self, request: web.Request, address: Address) -> web.Response:
        body = json.loads(await request.text() or "{}")
        fault = self._take("lease" if address.kind is LEASE else "write", address)
        has_landed = fault in (Fault.WRITE_TIMEOUT_AFTER, Fault.LEASE_TIMEOUT_AFTER)
        if fault is not None and fault.status and not has_landed:
            return _tell_fault(fault.status)
        try:
            written = await self._store(request.method, address, body)
        except ClusterError as error:
            return _tell_error(error)
        return _tell_fault(504) if has_landed else web.json_response(written)

    async def _store(self, method: str, address: Address, body: Obj) -> Obj:
        """Write. Raises ClusterError as FakeCluster does."""
        kind, namespace, name, subresource = address
        assert namespace is not None
        if method == "DELETE":
            if not await self.store.fetch(kind, namespace, name):
                raise AbsentError(f"{name} not found")
            seen = body["preconditions"]
            await self.store.delete(kind, namespace, name, seen["uid"], seen.get("resourceVersion"))
            return {"kind": "Status", "status": "Success"}
        if kind is LEASE:
            return await (self.store.create_lease if method == "POST" else self.store.replace_lease)(body)
        if kind is EVENT and method == "POST":
            return await self.store.create_event(body)
        if kind is EVENT:
            await self.store.change_event(namespace, name, body)
            return body
        if body["metadata"].keys() <= {"uid", "resourceVersion", "annotations"}:
            return await self._merge(address, body)
        return await self._apply(body, subresource)

    async def _merge(self, address: Address, body: Obj) -> Obj:
        """Change annotations, or entries of data."""
        kind, namespace, name, _ = address
        metadata = body["metadata"]
        if "data" in body:
            head = {"kind": kind.kind, "metadata": {**metadata, "namespace": namespace, "name": name}}
            return await self.store.change_data(head, body["data"])
        uid, annotations = (metadata[field] for field in ("uid", "annotations"))
        version = metadata.get("resourceVersion")
        return await self.store.annotate(kind, str(namespace), name, uid, annotations, version=version)

    async def _apply(self, body: Obj, subresource: str) -> Obj:
        if subresource == "status":
            return await self.store.apply_status(body)
        metadata = dict(body["metadata"])
        version, uid = metadata.pop("resourceVersion", None), metadata.pop("uid", None)
        obj = {**body, "metadata": metadata}
        assert uid is not None or version == "1", "neither create-only nor of a uid"
        if uid is None:
            return await self.store.apply_new(obj)
        return await self.store.apply_owned(obj, uid, version)

    def _take(self, stage: str, address: Address) -> Fault | None:
        return self.script.take(stage, address.kind.plural)

    def _version_of(self, *, is_stale: bool) -> int:
        changes = self.store.changes
        if is_stale and len(changes) > STALE_CHANGES:
            return changes[-1 - STALE_CHANGES].version
        return self.store.version


def _tell_error(error: ClusterError) -> web.Response:
    status = 404 if isinstance(error, AbsentError) else 409 if isinstance(error, ConflictError) else 422
    return _tell_status(status, str(error))


def _tell_fault(status: int) -> web.Response:
    return _tell_status(status, f"told to say {status}")


def _tell_status(status: int, message: str) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "code": status, "message": message}
    headers = {"Retry-After": "1"} if status == 429 else {}
    return web.json_response({**body, "reason": REASONS.get(status, "")}, status=status, headers=headers)
