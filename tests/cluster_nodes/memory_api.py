"""The API server as a node's workers use it, without HTTP.

It refuses a path that it does not have (404), another uid than the object's (409), and what a test tells it
to refuse. It checks no object, and takes a name twice.
"""

from collections import defaultdict
from typing import Any

from millrace_kubernetes.errors import ApiError, make_api_error

Object = dict[str, Any]


class MemoryApi:
    """Objects by path."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.deleted: dict[str, Object] = {}
        """What was deleted, as it was last."""
        self.events: list[Object] = []
        self.failures: defaultdict[str, list[int]] = defaultdict(list)
        """By method: the statuses to answer its next requests with."""

    async def get(self, path: str, **_: str) -> Object:
        self._fail("GET")
        return self._find(path)

    async def create(self, path: str, body: Object) -> Object:
        self._fail("POST")
        if path.endswith("/token"):
            return {"status": {"token": f"token-of-{body['spec']['boundObjectRef']['name']}"}}
        self.events.append(body)
        self.objects[f"{path}/{body['metadata']['name']}"] = body
        return body

    async def patch(self, path: str, body: Object, _kind: str = "") -> Object:
        self._fail("PATCH")
        path = path.removesuffix("/status")
        known = self._find(path)
        _check_uid(known, body.get("metadata", {}))
        changes = {key: value for key, value in body.items() if key != "metadata"}
        self.objects[path] = {**known, **changes}
        return self.objects[path]

    async def delete(self, path: str, body: Object | None = None) -> Object:
        self._fail("DELETE")
        assert body is not None
        assert body["gracePeriodSeconds"] == 0
        _check_uid(self._find(path), body["preconditions"])
        self.deleted[path] = self.objects.pop(path)
        return {}

    def _fail(self, method: str) -> None:
        if self.failures[method]:
            raise make_api_error(self.failures[method].pop(0), "told to fail")

    def _find(self, path: str) -> Object:
        if path not in self.objects:
            raise ApiError(404, f"{path} not found")
        return self.objects[path]


def _check_uid(known: Object, wanted: Object) -> None:
    if wanted.get("uid", known["metadata"].get("uid")) != known["metadata"].get("uid"):
        raise ApiError(409, f"the uid is {known['metadata'].get('uid')}")
