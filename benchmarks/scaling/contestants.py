"""Who sets the count in a trial: our autoscaler as it is shipped, or an HPA with one target."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from e2e.external_metrics import Subject
from e2e.hpa import apply_hpa, render_hpa
from e2e.service import Service

LEARNING_SECONDS = 480.0
"""With scrapes every 30 s it takes four to six minutes, with scrapes every 5 s one to two."""


class Size(NamedTuple):
    """How much a trial's service may use."""

    cpu: str
    """Of each replica, as in limits.cpu."""
    max_replicas: int


class Contestant(Protocol):
    """Who sets the count."""

    @property
    def name(self) -> str:
        """How the table calls it."""

    def prepare(self, service: Service) -> None:
        """Write its mode into the manifest."""

    def begin(self, service: Service) -> None:
        """Return once it is ready for the ramp; the service has one replica, with a steady load."""


@dataclass(frozen=True)
class Ours:
    """The operator's autoscaler, with nothing but its defaults."""

    size: Size
    name: str = "ours"

    def prepare(self, service: Service) -> None:
        """The example is in mode Automatic."""
        shrink(service, self.size)

    def begin(self, service: Service) -> None:
        """Wait until it knows how fast a replica is."""
        service.wait_for("planned by its model", lambda: has_learned(service.status()), LEARNING_SECONDS)


@dataclass(frozen=True)
class Hpa:
    """A HorizontalPodAutoscaler that wants `target` requests in flight at each replica."""

    target: int
    size: Size
    window_seconds: float

    @property
    def name(self) -> str:
        """As the table has it."""
        return f"HPA {self.target}"

    def prepare(self, service: Service) -> None:
        """Leave the count to others, beginning with one."""
        shrink(service, self.size)
        service.spec["scaling"]["mode"] = "External"
        service.spec["replicas"] = 1

    def begin(self, service: Service) -> None:
        """Apply the HPA and wait until it has read its metric."""
        subject = Subject(service.namespace, service.name)
        apply_hpa(service, render_hpa(subject, self.target, self.size.max_replicas, self.window_seconds))


def has_learned(status: Mapping[str, Any]) -> bool:
    """Whether a service's status says that the autoscaler plans with what requests taught it."""
    evidence = status.get("scaling", {}).get("evidence", {})
    return "perReplicaPerSecond" in evidence and "learning" not in evidence


def shrink(service: Service, size: Size) -> None:
    """Make the example's replicas small, and bound their number."""
    service.spec["resources"]["limits"]["cpu"] = size.cpu
    service.spec["scaling"] |= {"minReplicas": 1, "maxReplicas": size.max_replicas}
