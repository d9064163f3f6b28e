"""Follows the Secrets with clients' keys, the gateways' signing keys, and the gateways' own pods."""

from collections.abc import Callable, Mapping, Sequence

from millrace_gateway.access.keys import KeyIndex
from millrace_gateway.lifecycle import Lifecycle
from millrace_gateway.route.objects import Object
from millrace_kubernetes.collection import Source, collection_path
from millrace_runtime.contract import COMPONENT_GATEWAY, LABEL_API_KEYS, LABEL_COMPONENT, SECRET_GATEWAY_KEY


class KeySecretSink:
    """Follows the Secrets with clients' keys of one namespace."""

    def __init__(self, namespace: str, keys: KeyIndex, lifecycle: Lifecycle) -> None:
        path = collection_path("/api/v1", "secrets", namespace)
        self.source = Source(path, f"{LABEL_API_KEYS}=true", trim=_trim_secret)
        self.name = f"keys of {namespace}"
        lifecycle.await_sync(self.name)
        self._namespace = namespace
        self._keys = keys
        self._lifecycle = lifecycle
        self.apply = keys.apply
        self.delete = keys.delete

    def replace(self, items: Sequence[Object], _version: str) -> None:
        """Replace all Secrets with this complete list."""
        self._keys.replace_secrets(items, self._namespace)
        self._lifecycle.note_sync(self.name)


class SigningKeySink:
    """Follows the Secret with the gateways' private keys."""

    def __init__(self, namespace: str, take: Callable[[Object | None], None], lifecycle: Lifecycle) -> None:
        """`take` gets the Secret, or None if there is none."""
        path = collection_path("/api/v1", "secrets", namespace)
        self.source = Source(path, field_selector=f"metadata.name={SECRET_GATEWAY_KEY}", trim=_trim_secret)
        self.name = "signing keys"
        lifecycle.await_sync(self.name)
        self._take = take
        self._lifecycle = lifecycle

    def replace(self, items: Sequence[Object], _version: str) -> None:
        """Pass the Secret on, None if the list has none."""
        self._take(next(iter(items), None))
        self._lifecycle.note_sync(self.name)

    def apply(self, item: Object) -> None:
        """Pass a newer version on."""
        self._take(item)

    def delete(self, _item: Object) -> None:
        """Forget the keys."""
        self._take(None)


class GatewayPodSink:
    """Follows the gateways' pods."""

    def __init__(
        self, namespace: str, take: Callable[[Mapping[str, str]], None], lifecycle: Lifecycle
    ) -> None:
        """`take` gets the addresses of all gateways, this one included, by the names of their pods."""
        path = collection_path("/api/v1", "pods", namespace)
        self.source = Source(path, f"{LABEL_COMPONENT}={COMPONENT_GATEWAY}", trim=_trim_pod)
        self.name = "gateways"
        lifecycle.await_sync(self.name)
        self._lifecycle = lifecycle
        self._take = take
        self._addresses: dict[str, str] = {}

    def replace(self, items: Sequence[Object], _version: str) -> None:
        """Replace all pods with this complete list."""
        self._addresses = {}
        for item in items:
            self._keep(item)
        self._take(self._addresses)
        self._lifecycle.note_sync(self.name)

    def apply(self, item: Object) -> None:
        """Add a pod, or replace it with this newer version."""
        self._keep(item)
        self._take(self._addresses)

    def delete(self, item: Object) -> None:
        """Remove a pod."""
        self._addresses.pop(item["metadata"]["name"], None)
        self._take(self._addresses)

    def _keep(self, item: Object) -> None:
        """Keep the address of a gateway that may admit requests: its process may be running."""
        status, name = item.get("status") or {}, item["metadata"]["name"]
        if status.get("podIP") and status.get("phase") not in ("Succeeded", "Failed"):
            self._addresses[name] = status["podIP"]
        else:
            self._addresses.pop(name, None)


def _trim_secret(item: dict[str, object]) -> dict[str, object]:
    return {"metadata": _trim_metadata(item), "data": item.get("data")}


def _trim_pod(item: dict[str, object]) -> dict[str, object]:
    status = item.get("status")
    found = status if isinstance(status, Mapping) else {}
    return {
        "metadata": _trim_metadata(item),
        "status": {"podIP": found.get("podIP"), "phase": found.get("phase")},
    }


def _trim_metadata(item: dict[str, object]) -> dict[str, object]:
    metadata = item["metadata"]
    assert isinstance(metadata, Mapping)
    return {
        name: metadata[name] for name in ("name", "namespace", "resourceVersion", "uid") if name in metadata
    }
