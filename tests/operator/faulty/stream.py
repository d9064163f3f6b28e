"""One watch of the faulty API server: the changes since a version, and what goes wrong with them."""

import asyncio
import json

from aiohttp import web

from millrace_operator.kube.kinds import Obj
from tests.operator.faulty.address import Address, is_selected
from tests.operator.faulty.history import Change, History
from tests.operator.faulty.script import Fault, Script

LATE_SECONDS = 0.01
"""A change is told so long after it has happened."""
BOOKMARK_SECONDS = 0.5
"""A bookmark comes so long after what was told last."""
PIECE_BYTES, SLOW_SECONDS = 16, 1.0
"""Of a line that comes slowly, and how long all of it takes."""


class CutError(Exception):
    """The stream breaks here."""


class Stream:
    """Tells the changes of one collection."""

    def __init__(self, store: History, script: Script, address: Address, request: web.Request) -> None:
        self._store = store
        self._script = script
        self._address = address
        self._request = request
        self._selector = request.query.get("labelSelector", "")
        self._version = int(request.query["resourceVersion"])
        self._response = web.StreamResponse()
        self._bookmark_at = self._find_bookmark_time()

    async def run(self) -> web.StreamResponse:
        """Tell changes until the time of the watch is over, or a fault ends it."""
        await self._response.prepare(self._request)
        try:
            async with asyncio.timeout(float(self._request.query.get("timeoutSeconds", "300"))):
                await self._tell_all()
        except TimeoutError:
            pass
        except CutError:
            if self._request.transport is not None:
                self._request.transport.abort()
        return self._response

    async def _tell_all(self) -> None:
        while True:
            next_change = self._store.next_change
            for change in self._store.list_changes(self._version):
                self._version = change.version
                if told := self._read(change):
                    if not await self._tell(*told):
                        return
                    self._bookmark_at = self._find_bookmark_time()
            await self._wait_for(next_change)
            await asyncio.sleep(LATE_SECONDS)

    async def _wait_for(self, change: asyncio.Event) -> None:
        """Wait for a change, and send bookmarks until it comes."""
        while not change.is_set():
            try:
                async with asyncio.timeout_at(self._bookmark_at):
                    await change.wait()
            except TimeoutError:
                await self._send("BOOKMARK", self._render_bookmark())
                self._bookmark_at = self._find_bookmark_time()

    @staticmethod
    def _find_bookmark_time() -> float:
        return asyncio.get_running_loop().time() + BOOKMARK_SECONDS

    def _read(self, change: Change) -> tuple[str, Obj] | None:
        """Return what this watch tells of a change: an object that lost its label is gone for it."""
        if not self._address.holds(change.obj):
            return None
        was, has = is_selected(change.before, self._selector), is_selected(change.obj, self._selector)
        if change.kind == "DELETED" or not has:
            return ("DELETED", change.obj) if was else None
        return ("MODIFIED" if was else "ADDED"), change.obj

    async def _tell(self, kind: str, obj: Obj) -> bool:
        """Tell a change, with a fault where the script has one. Return whether the stream goes on."""
        plural = self._address.kind.plural
        if kind == "DELETED" and self._script.take("deletion", plural):
            return True
        fault = self._script.take("event", plural)
        if fault is not None and fault.status:
            await self._send("ERROR", {"kind": "Status", "code": fault.status, "message": "told to"})
            return False
        await self._send(kind, obj, fault)
        if fault is Fault.EVENT_TWICE:
            await self._send(kind, obj)
        if fault is Fault.EVENT_OLD and kind != "DELETED" and (older := self._store.find_older(obj)):
            await self._send("MODIFIED", older)
        return True

    async def _send(self, kind: str, obj: Obj, fault: Fault | None = None) -> None:
        line = json.dumps({"type": kind, "object": obj}).encode() + b"\n"
        if fault is Fault.EVENT_CUT:
            await self._response.write(line[: len(line) // 2])
            raise CutError
        if fault is not Fault.EVENT_SLOW:
            await self._response.write(line)
            return
        for begin in range(0, len(line), PIECE_BYTES):
            await self._response.write(line[begin : begin + PIECE_BYTES])
            await asyncio.sleep(SLOW_SECONDS * PIECE_BYTES / len(line))

    def _render_bookmark(self) -> Obj:
        kind = self._address.kind
        metadata = {"resourceVersion": str(self._version)}
        return {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}
