"""The kinds of objects that the operator reads and writes, and where the API server has them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple

from millrace_operator.kube.node import trim_node
from millrace_runtime import contract

Obj = dict[str, Any]
"""A Kubernetes object as JSON has it."""


class ServiceKey(NamedTuple):
    """Names one InferenceService in the cluster."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ObjectKey(NamedTuple):
    """Names one object in the cluster."""

    kind: str
    namespace: str
    name: str


class Listing(NamedTuple):
    """All objects of a kind at one moment."""

    objects: list[Obj]
    """Made compact one page after another: they wait for the rest of the list."""
    version: int
    """The resourceVersion of that moment."""


def _keep_whole(obj: Obj) -> Obj:
    return obj


class Role(Enum):
    """What objects of a kind are to a service: how they are followed, and whom a change of one concerns."""

    SERVICE = auto()
    """The service itself. Kopf watches these."""
    CHILD = auto()
    """One of a service's own, made by us."""
    POD = auto()
    """One of a service's pods, made by others for us."""
    NODE = auto()
    """Where pods run: in no namespace, and nobody's own."""
    UNWATCHED = auto()
    """Read and written when there is need."""


@dataclass(frozen=True)
class Kind:
    """A kind, its REST path, and what it is to us. A row of KINDS is all that a kind needs to be followed."""

    group: str
    version: str
    kind: str
    plural: str
    role: Role = Role.UNWATCHED
    is_optional: bool = False
    """Whether all goes on without it where the API server has no such kind, or does not let us read it."""
    trim: Callable[[Obj], Obj] = _keep_whole
    """Makes an object smaller as soon as it is parsed."""

    @property
    def api_version(self) -> str:
        """Group and version as manifests write them."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """Return the URL path of an object, or of the collection when `name` is empty."""
        root = f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if namespace else ""
        return "/".join(part for part in (f"{root}{scope}/{self.plural}", name, subresource) if part)


class Scope(NamedTuple):
    """A kind's objects, as far as they are looked after."""

    kind: Kind
    namespace: str | None = None
    """None: in all namespaces."""


INFERENCE_SERVICE = Kind(contract.GROUP, contract.VERSION, contract.KIND, contract.PLURAL, Role.SERVICE)
SERVICE_ACCOUNT = Kind("", "v1", "ServiceAccount", "serviceaccounts", Role.CHILD)
SERVICE = Kind("", "v1", "Service", "services", Role.CHILD)
CONTROLLER_REVISION = Kind("apps", "v1", "ControllerRevision", "controllerrevisions", Role.CHILD)
POD_DISRUPTION_BUDGET = Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", Role.CHILD)
DEPLOYMENT = Kind("apps", "v1", "Deployment", "deployments", Role.CHILD)
JOB = Kind("batch", "v1", "Job", "jobs", Role.CHILD)
POD = Kind("", "v1", "Pod", "pods", Role.POD)
NODE = Kind("", "v1", "Node", "nodes", Role.NODE, is_optional=True, trim=trim_node)
LEASE = Kind("coordination.k8s.io", "v1", "Lease", "leases")
EVENT = Kind("", "v1", "Event", "events")
PERSISTENT_VOLUME_CLAIM = Kind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
HORIZONTAL_POD_AUTOSCALER = Kind("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")

KINDS = (
    INFERENCE_SERVICE,
    SERVICE_ACCOUNT,
    SERVICE,
    CONTROLLER_REVISION,
    POD_DISRUPTION_BUDGET,
    DEPLOYMENT,
    JOB,
    POD,
    NODE,
    LEASE,
    EVENT,
    PERSISTENT_VOLUME_CLAIM,
    HORIZONTAL_POD_AUTOSCALER,
)
CHILDREN = tuple(kind for kind in KINDS if kind.role is Role.CHILD)
WATCHED = tuple(kind for kind in KINDS if kind.role in (Role.SERVICE, Role.CHILD, Role.POD))
"""In the namespaces of services."""
NODES = Scope(NODE)
"""In no namespace. The Role of a namespace alone does not let us read them."""
EVERYWHERE = (*(Scope(kind) for kind in WATCHED), NODES)
BY_NAME = {kind.kind: kind for kind in KINDS}


def find_scopes(namespaces: Sequence[str]) -> tuple[Scope, ...]:
    """Return what is watched and listed to look after these namespaces; none means all."""
    found = tuple(Scope(kind, namespace) for namespace in namespaces for kind in WATCHED)
    return (*found, NODES) if found else EVERYWHERE


def kind_of(obj: Obj) -> Kind:
    """Return the kind of a raw object. Raises KeyError for one that we never handle."""
    return BY_NAME[obj["kind"]]
