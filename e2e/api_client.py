"""Requests to the API server without a kubectl, of which each takes 0.13 s of CPU time."""

import json
import ssl
from contextlib import closing
from http.client import HTTPSConnection
from typing import Any, NamedTuple

from e2e.cluster.controlplane import client_context
from e2e.cluster.local_cluster import LocalCluster

Object = dict[str, Any]
TIMEOUT_SECONDS = 30.0


class RefusedError(Exception):
    """The API server's status and its words."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


def create(cluster: LocalCluster, collection: str, body: Object, user: str = "") -> Object:
    """Create an object as the administrator, or in a user's name. Raises RefusedError."""
    return _send(cluster, "POST", collection, body, _administrator(cluster, user))


def patch(cluster: LocalCluster, path: str, body: Object, user: str = "") -> Object:
    """Send a merge patch as the administrator, or in a user's name. Raises RefusedError."""
    return _send(cluster, "PATCH", path, body, _administrator(cluster, user))


def patch_with_token(cluster: LocalCluster, path: str, body: Object, token: str) -> Object:
    """Send a merge patch as the account of a token. Raises RefusedError."""
    context = ssl.create_default_context(cafile=str(cluster.layout.keys / "ca.crt"))
    return _send(cluster, "PATCH", path, body, _Sender(context, {"Authorization": f"Bearer {token}"}))


def delete(cluster: LocalCluster, path: str, **options: Any) -> None:
    """Ask for the deletion of what is at a path, and wait for nothing. It may be gone already.

    `options` are those of the API. Raises RefusedError.
    """
    try:
        _send(cluster, "DELETE", path, options, _administrator(cluster))
    except RefusedError as error:
        if error.status != 404:
            raise


class _Sender(NamedTuple):
    """Who sends a request."""

    context: ssl.SSLContext
    headers: dict[str, str]


def _administrator(cluster: LocalCluster, user: str = "") -> _Sender:
    headers = {"Impersonate-User": user} if user else {}
    return _Sender(client_context(cluster.layout.keys, "ca", "admin"), headers)


def _send(cluster: LocalCluster, method: str, path: str, body: Object, sender: _Sender) -> Object:
    content_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
    headers = {**sender.headers, "Content-Type": content_type}
    address = ("127.0.0.1", cluster.ports.api)
    with closing(HTTPSConnection(*address, context=sender.context, timeout=TIMEOUT_SECONDS)) as connection:
        connection.request(method, path, json.dumps(body), headers)
        response = connection.getresponse()
        found: Object = json.loads(response.read())
    if response.status >= 400:
        raise RefusedError(response.status, found["message"])
    return found
