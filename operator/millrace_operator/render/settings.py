"""The operator's flags that decide how children look, and the images of the runtime's versions. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from millrace_operator.api.access_types import DefaultAccess
from millrace_operator.api.prices import Prices
from millrace_operator.api.types import VERSION_MAX_LENGTH, VERSION_PATTERN

_IMAGE_PATTERN = r"[^\s=]+"


class UnmadeError(ValueError):
    """A revision that cannot be made now; the text says what to do.

    UnmadeError
    ├── VersionError        its version of the runtime has no image
    └── GatewayKeyError     its clients need keys, and the operator has no key of the gateways
    """


class VersionError(UnmadeError):
    """A version of the runtime without an image; the text says what to write."""


class GatewayKeyError(UnmadeError):
    """A service whose clients need keys, while the operator has no key of the gateways."""


@dataclass(frozen=True, kw_only=True)
class RenderSettings:
    """Parsed once from the command line."""

    runtime_image: str = "millrace/runtime:0.1.0"
    """Image for a service that names no version. A revision keeps the image with which it was made."""

    fetch_image: str = "millrace/operator:0.1.0"
    """Image of the container that fetches a model before a replica starts."""

    runtime_versions: Mapping[str, str] = field(default_factory=dict)
    """Images of the versions that a service can name."""

    gateway_service: str = "millrace-gateway.millrace-system.svc.cluster.local"
    """DNS name of the gateway's Service, to which each service's own name points."""

    gateway_port: int = 80
    """Port of the gateway's Service."""

    cluster_domain: str = "cluster.local"
    """DNS domain of the cluster."""

    image_pull_policy: str = "IfNotPresent"
    """When the nodes pull the replicas' image."""

    access: DefaultAccess = field(default_factory=DefaultAccess)
    """The default of `spec.access`, and the namespaces where the gateway may read keys."""

    prices: Prices = field(default_factory=Prices)
    """The price of a replica's resources for an hour, if a service names none."""

    def find_image(self, version: str | None) -> str:
        """Return the image of a new revision's replicas. Raises VersionError for a version without one."""
        if version is None:
            return self.runtime_image
        if version not in self.runtime_versions:
            known = ", ".join(sorted(self.runtime_versions))
            raise VersionError(
                f"spec.engine.version {version} is unknown to this operator: write one of {known}, leave it "
                "out, or name its image in the chart's images.runtimeVersions"
            )
        return self.runtime_versions[version]

    def is_own_version(self, version: str | None) -> bool:
        """Whether a version is the one that the operator was installed with, so that it knows its flags."""
        return version is None or self.runtime_versions.get(version) == self.runtime_image

    def url(self, namespace: str, name: str) -> str:
        """Return where clients in the cluster reach a service."""
        port = "" if self.gateway_port == 80 else f":{self.gateway_port}"
        return f"http://{name}.{namespace}.svc.{self.cluster_domain}{port}"


def parse_runtime_version(text: str) -> tuple[str, str]:
    """Return a version and its image from VERSION=IMAGE. Raises VersionError."""
    version, _, image = text.partition("=")
    is_version = re.fullmatch(VERSION_PATTERN, version) and len(version) <= VERSION_MAX_LENGTH
    if not is_version or not re.fullmatch(_IMAGE_PATTERN, image):
        raise VersionError(
            f"{text!r} names no image of a version; write VERSION=IMAGE such as "
            "0.2.0=registry.example.com/runtime:0.2.0"
        )
    return version, image
