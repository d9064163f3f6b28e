"""The kinds of objects that the operator reads and writes, their URL paths, and the keys of objects. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple

from millrace_operator.kube.node import trim_node
from millrace_runtime import contract

Obj = dict[str, Any]
"""A Kubernetes object as in JSON."""


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


class ObjectId(NamedTuple):
    """Names one object in a namespace that is known from elsewhere, such as the service's."""

    kind: str
    name: str


class Listing(NamedTuple):
    """All objects of a kind at one moment."""

    objects: list[Obj]
    """Compact: they wait for the rest of the list."""
    version: int
    """The list's resourceVersion."""


def _keep_whole(obj: Obj) -> Obj:
    return obj


class Role(Enum):
    """The role of a kind for a service: how its objects are followed, and which service a change concerns."""

    SERVICE = auto()
    """The service itself. Kopf watches it."""
    CHILD = auto()
    """An object of a service that the operator makes."""
    POD = auto()
    """A pod of a service, made by others for it."""
    NODE = auto()
    """A node: in no namespace, and of no service."""
    UNWATCHED = auto()
    """Objects that the operator reads and writes when it needs them."""


@dataclass(frozen=True)
class Kind:
    """A kind, its REST path, and its role. A row of KINDS is all that a kind needs to be followed."""

    group: str
    version: str
    kind: str
    plural: str
    role: Role = Role.UNWATCHED
    is_optional: bool = False
    """Whether the operator works without the kind, if the API server lacks it or may not show it."""
    trim: Callable[[Obj], Obj] = _keep_whole
    """Makes an object smaller right after parsing."""

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
    """The objects of a kind that the operator looks after."""

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
SECRET = Kind("", "v1", "Secret", "secrets")
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
    SECRET,
    PERSISTENT_VOLUME_CLAIM,
    HORIZONTAL_POD_AUTOSCALER,
)
CHILDREN = tuple(kind for kind in KINDS if kind.role is Role.CHILD)
WATCHED = tuple(kind for kind in KINDS if kind.role in (Role.SERVICE, Role.CHILD, Role.POD))
"""Kinds in the namespaces of services."""
NODES = Scope(NODE)
"""In no namespace. The Role of a namespace does not let the operator read them."""
EVERYWHERE = (*(Scope(kind) for kind in WATCHED), NODES)
BY_NAME = {kind.kind: kind for kind in KINDS}


def find_scopes(namespaces: Sequence[str]) -> tuple[Scope, ...]:
    """Return the scopes to watch and list for these namespaces; none means all."""
    found = tuple(Scope(kind, namespace) for namespace in namespaces for kind in WATCHED)
    return (*found, NODES) if found else EVERYWHERE


def kind_of(obj: Obj) -> Kind:
    """Return the kind of a raw object. Raises KeyError for an unknown one."""
    return BY_NAME[obj["kind"]]


def object_id(obj: Obj) -> ObjectId:
    """Return kind and name of a raw object."""
    return ObjectId(obj["kind"], obj["metadata"]["name"])


def is_owned(obj: Obj, uid: str) -> bool:
    """Whether the controller of the object has that uid."""
    references = obj["metadata"].get("ownerReferences", [])
    return any(reference.get("controller") and reference.get("uid") == uid for reference in references)
