"""The kinds of objects that the operator reads and writes, and where the API server has them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from millrace_operator.cluster.node import trim_node
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
    version: int
    """The resourceVersion of that moment."""


def _keep_whole(obj: Obj) -> Obj:
    return obj


@dataclass(frozen=True)
class Kind:
    """A kind and its REST path."""

    group: str
    version: str
    kind: str
    plural: str
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


SERVICE = Kind("", "v1", "Service", "services")
POD = Kind("", "v1", "Pod", "pods")
SERVICE_ACCOUNT = Kind("", "v1", "ServiceAccount", "serviceaccounts")
DEPLOYMENT = Kind("apps", "v1", "Deployment", "deployments")
CONTROLLER_REVISION = Kind("apps", "v1", "ControllerRevision", "controllerrevisions")
POD_DISRUPTION_BUDGET = Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
LEASE = Kind("coordination.k8s.io", "v1", "Lease", "leases")
CONFIG_MAP = Kind("", "v1", "ConfigMap", "configmaps")
EVENT = Kind("", "v1", "Event", "events")
HORIZONTAL_POD_AUTOSCALER = Kind("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
NODE = Kind("", "v1", "Node", "nodes", is_optional=True, trim=trim_node)
INFERENCE_SERVICE = Kind(contract.GROUP, contract.VERSION, contract.KIND, contract.PLURAL)

CHILDREN = (SERVICE_ACCOUNT, SERVICE, CONTROLLER_REVISION, POD_DISRUPTION_BUDGET, DEPLOYMENT)
WATCHED = (INFERENCE_SERVICE, *CHILDREN, POD)
NODES = Scope(NODE)
"""In no namespace. The Role of a namespace alone does not let us read them."""
EVERYWHERE = (*(Scope(kind) for kind in WATCHED), NODES)
BY_NAME = {kind.kind: kind for kind in (*WATCHED, NODE, LEASE, EVENT, CONFIG_MAP)}


def find_scopes(namespaces: Sequence[str]) -> tuple[Scope, ...]:
    """Return what is watched and listed to look after these namespaces; none means all."""
    found = tuple(Scope(kind, namespace) for namespace in namespaces for kind in WATCHED)
    return (*found, NODES) if found else EVERYWHERE


def kind_of(obj: Obj) -> Kind:
    """Return the kind of a raw object. Raises KeyError for one that we never handle."""
    return BY_NAME[obj["kind"]]
