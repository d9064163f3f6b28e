"""The /etc/hosts of a pod: itself, and every Service as cluster DNS would name it. Pure but for the write."""

import ipaddress
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

Object = dict[str, Any]
_MAX_ALIASES = 5


class ServiceKey(NamedTuple):
    """Names one Service in the cluster."""

    namespace: str
    name: str


def resolve_services(services: Iterable[Object], domain: str, api_address: str) -> dict[ServiceKey, str]:
    """Return the address of each Service; headless ones and those outside the cluster are left out.

    An ExternalName that names a Service of the cluster has that Service's address.
    """
    by_key = {
        ServiceKey(each["metadata"]["namespace"], each["metadata"]["name"]): each["spec"] for each in services
    }
    found = {key: _resolve(key, by_key, domain, api_address) for key in by_key}
    return {key: address for key, address in found.items() if address is not None}


def _resolve(
    key: ServiceKey, by_key: Mapping[ServiceKey, Object], domain: str, api_address: str
) -> str | None:
    for _ in range(_MAX_ALIASES):
        spec = by_key.get(key)
        if key == ServiceKey("default", "kubernetes"):
            return api_address
        if spec is None:
            return None
        if spec.get("type") != "ExternalName":
            return _literal(spec.get("clusterIP", ""))
        target = spec["externalName"].rstrip(".").removesuffix(f".{domain}")
        if _literal(target):
            return _literal(target)
        labels = target.split(".")
        if len(labels) != 3 or labels[2] != "svc":
            return None
        key = ServiceKey(namespace=labels[1], name=labels[0])
    return None


def _literal(text: str) -> str | None:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None


def render_hosts(pod: Object, address: str, services: Mapping[ServiceKey, str], domain: str) -> str:
    """Return the file's text for one pod."""
    metadata, spec = pod["metadata"], pod["spec"]
    lines = ["127.0.0.1\tlocalhost", f"{address}\t{spec.get('hostname') or metadata['name']}"]
    for (namespace, name), target in sorted(services.items()):
        names = [f"{name}.{namespace}.svc.{domain}", f"{name}.{namespace}.svc", f"{name}.{namespace}"]
        names += [name] if namespace == metadata["namespace"] else []
        lines.append(f"{target}\t{' '.join(names)}")
    return "\n".join(lines) + "\n"


def write_in_place(path: Path, text: str) -> None:
    """Rewrite a file that is bind-mounted into a pod: same inode, and never empty for a reader."""
    content = text.encode()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if os.pread(descriptor, len(content) + 1, 0) != content:
            os.pwrite(descriptor, content, 0)
            os.ftruncate(descriptor, len(content))
    finally:
        os.close(descriptor)
