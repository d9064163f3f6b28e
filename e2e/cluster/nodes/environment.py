"""A container's environment: image, Services, the pod's env and envFrom, $(VAR) references. Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from e2e.cluster.nodes.errors import PodRefusedError
from e2e.cluster.nodes.network.endpoints import Endpoint

Object = dict[str, Any]
ENV_BIND_ADDRESS = "MILLRACE_BIND_ADDRESS"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)")


@dataclass(frozen=True)
class Facts:
    """What the variables of a pod can refer to."""

    pod: Object
    pod_ip: str
    host_ip: str
    config_maps: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Data by name; a missing one is absent."""
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def build_environment(
    container: Object,
    facts: Facts,
    image_env: Mapping[str, str],
    services: Mapping[str, str],
    bin_folder: str,
) -> dict[str, str]:
    """Return all variables of one container. Raises PodRefusedError where one has no value."""
    env = {"HOME": "/tmp", "HOSTNAME": facts.pod["metadata"]["name"], **services}
    env |= {**image_env, ENV_BIND_ADDRESS: facts.pod_ip}
    env["PATH"] = f"{bin_folder}:{image_env.get('PATH', SYSTEM_PATH)}"
    for source in container.get("envFrom", ()):
        env |= _from_source(source, facts)
    for entry in container.get("env", ()):
        value = _value(entry, facts, env)
        if value is not None:
            env[entry["name"]] = value
    return env


def expand(text: str, env: Mapping[str, str]) -> str:
    """Return the text with each $(NAME) replaced by its value where there is one, and each $$ by $."""
    return _REFERENCE.sub(lambda found: "$" if found[0] == "$$" else env.get(found[1], found[0]), text)


def service_variables(services: Iterable[Object], namespace: str, api: Endpoint) -> dict[str, str]:
    """Return the variables that Kubernetes gives for the namespace's Services and for the API server."""
    env: dict[str, str] = {}
    for service in services:
        address = service["spec"].get("clusterIP")
        if service["metadata"]["namespace"] == namespace and address not in (None, "", "None"):
            env |= _service(service["metadata"]["name"], address, service["spec"].get("ports", []))
    env |= _service("kubernetes", api.address, [{"name": "https", "port": api.port}])
    return env


def _service(name: str, address: str, ports: list[Object]) -> dict[str, str]:
    prefix = name.upper().replace("-", "_")
    env = {f"{prefix}_SERVICE_HOST": address}
    for index, port in enumerate(ports):
        number, protocol = str(port["port"]), port.get("protocol", "TCP")
        if index == 0:
            env |= {
                f"{prefix}_SERVICE_PORT": number,
                f"{prefix}_PORT": f"{protocol.lower()}://{address}:{number}",
            }
        if "name" in port:
            env[f"{prefix}_SERVICE_PORT_{port['name'].upper().replace('-', '_')}"] = number
        link = f"{prefix}_PORT_{number}_{protocol}"
        env |= {
            link: f"{protocol.lower()}://{address}:{number}",
            f"{link}_PROTO": protocol.lower(),
            f"{link}_PORT": number,
            f"{link}_ADDR": address,
        }
    return env


def _missing(what: str) -> PodRefusedError:
    return PodRefusedError("CreateContainerConfigError", what)


def _from_source(source: Object, facts: Facts) -> dict[str, str]:
    kind, known = (
        ("configMapRef", facts.config_maps) if "configMapRef" in source else ("secretRef", facts.secrets)
    )
    reference = source[kind]
    data = known.get(reference["name"])
    if data is None and not reference.get("optional"):
        raise _missing(f"{kind.removesuffix('Ref').lower()} {reference['name']!r} not found")
    return {source.get("prefix", "") + key: value for key, value in (data or {}).items()}


def _value(entry: Object, facts: Facts, env: Mapping[str, str]) -> str | None:
    source = entry.get("valueFrom")
    if source is None:
        return expand(entry.get("value", ""), env)
    for kind, known in (("configMapKeyRef", facts.config_maps), ("secretKeyRef", facts.secrets)):
        if kind in source:
            return _key(source[kind], kind, known)
    if "fieldRef" in source:
        return field_value(source["fieldRef"]["fieldPath"], facts)
    raise _missing(f"env {entry['name']}: this node has no {', '.join(source)}")


def _key(reference: Object, kind: str, known: Mapping[str, Mapping[str, str]]) -> str | None:
    value = known.get(reference["name"], {}).get(reference["key"])
    if value is None and not reference.get("optional"):
        raise _missing(
            f"{kind.removesuffix('KeyRef')} {reference['name']!r} with key {reference['key']!r} not found"
        )
    return value


def field_value(path: str, facts: Facts) -> str:
    """Return a downward API field of the pod."""
    metadata, spec = facts.pod["metadata"], facts.pod["spec"]
    simple = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "status.podIP": facts.pod_ip,
        "status.podIPs": facts.pod_ip,
        "status.hostIP": facts.host_ip,
        "status.hostIPs": facts.host_ip,
    }
    if path in simple:
        return str(simple[path])
    for kind in ("labels", "annotations"):
        values: dict[str, str] = metadata.get(kind, {})
        if path == f"metadata.{kind}":
            return "\n".join(f'{key}="{value}"' for key, value in sorted(values.items()))
        if path.startswith(f"metadata.{kind}['"):
            return values.get(path[len(f"metadata.{kind}['") : -2], "")
    raise _missing(f"this node has no downward API field {path!r}")
