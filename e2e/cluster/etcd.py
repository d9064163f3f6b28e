"""Asks etcd itself, behind the API server's back: forget what was."""

import http.client
import json
from base64 import b64encode
from contextlib import closing
from typing import Any

from e2e.cluster.controlplane import client_context
from e2e.cluster.errors import PartFailedError
from e2e.cluster.settings import Layout, Ports

TIMEOUT_SECONDS = 30.0
FIRST_KEY = b64encode(b"\0").decode()


def compact(layout: Layout, ports: Ports) -> int:
    """Forget all versions before the newest, and return its number. Raises PartFailedError."""
    found = _ask(layout, ports, "range", {"key": FIRST_KEY})
    revision = int(found["header"]["revision"])
    _ask(layout, ports, "compaction", {"revision": revision, "physical": True})
    return revision


def _ask(layout: Layout, ports: Ports, what: str, question: dict[str, Any]) -> dict[str, Any]:
    context = client_context(layout.keys, "etcd-ca", "etcd-client")
    connection = http.client.HTTPSConnection(
        "127.0.0.1", ports.etcd, context=context, timeout=TIMEOUT_SECONDS
    )
    with closing(connection):
        connection.request("POST", f"/v3/kv/{what}", json.dumps(question))
        response = connection.getresponse()
        body = response.read()
    if response.status != 200:
        raise PartFailedError("etcd", f"{what}: {response.status} {body[:200].decode(errors='replace')}")
    parsed: dict[str, Any] = json.loads(body)
    return parsed
