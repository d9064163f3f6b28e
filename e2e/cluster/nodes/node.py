"""One Node as its pods see it: what every pod's worker is given."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from e2e.cluster.nodes.api_objects import ApiObjects
from e2e.cluster.nodes.environment import service_variables
from e2e.cluster.nodes.events import EventRecorder
from e2e.cluster.nodes.images import Image, load_image
from e2e.cluster.nodes.kube import KubeClient
from e2e.cluster.nodes.network.addresses import AddressBlock
from e2e.cluster.nodes.network.endpoints import Endpoint
from e2e.cluster.nodes.network.hosts import render_hosts, resolve_services, write_in_place
from e2e.cluster.nodes.settings import CLUSTER_DOMAIN, SOURCE_ROOT, Settings

Object = dict[str, Any]


class ServiceList(Protocol):
    """The cluster's Services, kept up to date by someone else."""

    @property
    def objects(self) -> Mapping[str, Object]: ...


@dataclass(frozen=True)
class Node:
    """A Node's name and its parts."""

    name: str
    settings: Settings
    client: KubeClient
    session: aiohttp.ClientSession
    """For probes; the client has its own."""
    events: EventRecorder
    api_objects: ApiObjects
    addresses: AddressBlock
    services: ServiceList
    api_address: Endpoint

    @property
    def host_ip(self) -> str:
        """The Node's InternalIP, where its kubelet port is."""
        return self.settings.kubelet_address

    @property
    def bin_folder(self) -> str:
        """Where the pods' `millrace` is: the running Python's environment."""
        return str(Path(sys.prefix) / "bin")

    @property
    def always_visible(self) -> tuple[Path, ...]:
        """What the environment's programs need, wherever it lies."""
        checkouts = (SOURCE_ROOT, *(folder.parent for folder in self.settings.further_images))
        return tuple(dict.fromkeys((*checkouts, Path(sys.prefix), Path(sys.base_prefix))))

    def pod_folder(self, uid: str) -> Path:
        """Return where a pod's files are."""
        return self.settings.state_dir / "pods" / uid

    def log_folder(self, uid: str, container: str) -> Path:
        """Return where a container's logs are, one file a run."""
        return self.pod_folder(uid) / "logs" / container

    def image(self, reference: str) -> Image:
        """Return the image. Raises ImageError where it is unknown."""
        return load_image(reference, (*self.settings.image_dirs, *self.settings.further_images))

    def variables(self, namespace: str, *, with_services: bool) -> dict[str, str]:
        """Return the environment variables of the API server and, where wanted, of the Services."""
        services = self.services.objects.values() if with_services else ()
        return service_variables(services, namespace, self.api_address)

    def write_hosts(self, pod: Object, address: str) -> Path:
        """Write a pod's /etc/hosts, and return its path on the host."""
        services = resolve_services(self.services.objects.values(), CLUSTER_DOMAIN, self.api_address.address)
        path = self.pod_folder(pod["metadata"]["uid"]) / "hosts"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_in_place(path, render_hosts(pod, address, services, CLUSTER_DOMAIN))
        return path

    def emit(self, pod: Object, reason: str, message: str, container: str = "") -> None:
        """Post an event about a pod."""
        about = {"apiVersion": "v1", "kind": "Pod", "metadata": pod["metadata"]}
        self.events.emit(about, reason, message, node=self.name, container=container)
