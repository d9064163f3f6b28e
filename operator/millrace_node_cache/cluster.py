"""The API server as the node cache uses it: the pods of its node, and the labels of its Node."""

import json
from collections.abc import Mapping
from typing import Any

from millrace_kubernetes.connection import Connection
from millrace_node_cache.models import Uses, read_uses
from millrace_runtime.contract import LABEL_KEPT

_SECONDS = 30.0
_MERGE = "application/merge-patch+json"


class Cluster:
    """The API server for one node. Each method raises the exceptions of `Connection.request`."""

    def __init__(self, connection: Connection, node: str) -> None:
        self._connection = connection
        self._node = node
        self._path = f"/api/v1/nodes/{node}"

    async def list_uses(self, namespace: str) -> Uses:
        """Return the models that pods of this node read now.

        The list has no resourceVersion, so the API server does not answer it from a cache.
        """
        parameters = {"fieldSelector": f"spec.nodeName={self._node}", "labelSelector": LABEL_KEPT}
        path = f"/api/v1/namespaces/{namespace}/pods"
        found = await self._get(path, parameters)
        pods, rest = found.get("items"), (found.get("metadata") or {}).get("continue")
        if not isinstance(pods, list) or rest:  # read as no pods, it would evict models in use
            raise ValueError(f"the API server did not answer a complete list of pods: {str(found)[:100]}")
        return read_uses(pods)

    async def read_labels(self) -> dict[str, str]:
        """Return the Node's labels."""
        return (await self._get(self._path))["metadata"].get("labels") or {}

    async def change_labels(self, labels: Mapping[str, str | None]) -> None:
        """Set or remove these labels of the Node."""
        body = json.dumps({"metadata": {"labels": labels}}).encode()
        async with self._connection.request(
            "PATCH", self._path, _SECONDS, body=body, content_type=_MERGE
        ) as answer:
            await answer.read()

    async def _get(self, path: str, parameters: Mapping[str, str] | None = None) -> dict[str, Any]:
        async with self._connection.request("GET", path, _SECONDS, parameters=parameters) as answer:
            found: dict[str, Any] = json.loads(await answer.read())
            return found
