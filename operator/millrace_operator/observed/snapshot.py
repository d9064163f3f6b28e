"""The input of a plan: one service and its own objects, as they were seen at one moment. Pure.

A service may be deleted and created again. Garbage collection then deletes the earlier service's objects
within a moment, and their names become free. So the plan waits for a limited time before it calls such a name
a conflict.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from millrace_fit.units import show_bytes
from millrace_kubernetes.model_names import Standing
from millrace_operator.api.conditions import Reason, parse_time
from millrace_operator.api.model_types import ReplicaStatus
from millrace_operator.kube.kinds import JOB, Obj, ObjectId, is_owned, object_id
from millrace_operator.kube.node import GpuNode
from millrace_operator.observed.job_reports import Jobs
from millrace_runtime import contract

LEFT_OVER_SECONDS = 180.0
"""From the creation of the present service, by the API server's clock."""


def is_of_earlier_service(obj: Obj, service: Obj) -> bool:
    """Whether the object's controller is an earlier service of the same name: its uid is another one."""
    references, metadata = obj["metadata"].get("ownerReferences", []), service["metadata"]
    owner: Obj = next((one for one in references if one.get("controller")), {})
    group = owner.get("apiVersion", "").partition("/")[0]
    is_namesake = (group, owner.get("kind"), owner.get("name")) == (
        contract.GROUP,
        contract.KIND,
        metadata["name"],
    )
    return is_namesake and owner.get("uid") != metadata["uid"]


class Rival(NamedTuple):
    """Somebody else's autoscaler, and the Deployment of ours that it scales."""

    autoscaler: str
    deployment: str


@dataclass(frozen=True)
class Advice:
    """The autoscaler's last decision, as the planner reads it. None means unknown."""

    desired: int
    reason: str
    message: str
    binding: str
    is_held: bool
    """Whether signals are missing, so that the count is not lowered."""
    are_objectives_met: bool | None = None
    objectives_message: str = ""
    in_flight: Mapping[str, float] = field(default_factory=dict)
    """Requests in progress by pod name, where known."""
    wanted: int | None = None
    """The count for the present load, without bounds and limits of speed."""
    made_from: int | None = None
    """The count from which the decision was made; None if status had none."""
    evidence: Mapping[str, Any] | None = None
    """`status.scaling.evidence` without the replicas' states; None if there is none."""
    missing: str = ""
    """The missing signals, and why they are missing."""

    @property
    def is_starting(self) -> bool:
        """Whether no replica has been Ready for long enough to be measured."""
        return self.reason == Reason.STARTING


class PodLoad(NamedTuple):
    """The load of all gateways together at a pod now."""

    in_flight: int
    """Requests at the gateways that report."""
    has_left: bool
    """Whether every gateway knows that the pod must get no new requests."""
    silent_since: float | None = None
    """Since when a gateway has been silent, in seconds since 1970; None while all report."""
    is_routable: bool = True
    """Whether every gateway may send it requests, as far as that is known."""


class Demand(NamedTuple):
    """A service's requests at the gateways at this moment."""

    num_open: int
    """Requests that have come and have not ended."""
    idle_since: float | None
    """When the last one ended, in seconds since 1970; None while a gateway is silent or a request open."""
    last_end: float | None = None
    """When the last known request ended, even a refused one."""


UNKNOWN_DEMAND = Demand(0, None)


class Fetched(NamedTuple):
    """The progress of a pod's fetch, as the pod reports it. It is shown, and no decision uses it."""

    total_bytes: int | None
    """None if the model's source does not report it."""
    done_bytes: int
    bytes_per_second: int

    @property
    def percent(self) -> int | None:
        """The percentage of the bytes, a whole number; 100 for an empty model, None without a total."""
        if self.total_bytes is None:
            return None
        return min(100, 100 * self.done_bytes // self.total_bytes) if self.total_bytes else 100

    def describe(self) -> str:
        """Return the progress and the speed in words."""
        far = self._describe_amount()
        return f"{far}, {show_bytes(self.bytes_per_second)}/s" if self.bytes_per_second else far

    def _describe_amount(self) -> str:
        if self.total_bytes is None:
            return f"{show_bytes(self.done_bytes)} of an unknown size"
        return f"{self.percent} % of {show_bytes(self.total_bytes)}"

    def summarize(self) -> str:
        """Return the progress in one word: a percentage such as `42%`, or an amount such as `1.6GB`."""
        if self.percent is None:
            return show_bytes(self.done_bytes).replace(" ", "")
        return f"{self.percent}%"


class Claim(NamedTuple):
    """A PersistentVolumeClaim, as far as a cache needs it, or a look at the model in it."""

    namespace: str
    name: str
    access_modes: frozenset[str] | None
    """None if there is no such claim."""
    volume: str | None = None
    """Its PersistentVolume; None while it waits for one, or after it has lost it."""
    is_leaving: bool = False
    """Whether it is being deleted: a pod that mounts it would never start, and would keep it."""

    @property
    def is_bound(self) -> bool:
        """Whether it has a volume, so that no pod chooses one for it."""
        return self.volume is not None


@dataclass(frozen=True)
class Obstacles:
    """The obstacles that earlier writes met, and other writers of the same objects."""

    conflicts: frozenset[ObjectId] = frozenset()
    """Children's names that objects of others have."""
    refusals: Mapping[ObjectId, str] = field(default_factory=dict)
    """Why the API server refused an object, in its words."""
    rivals: tuple[Rival, ...] = ()
    """Autoscalers of others that scale Deployments of the service."""
    is_tried: bool = True
    """Whether this leader has acted on a whole plan before, and so has met all of these."""


class GatewayKey(NamedTuple):
    """The public key of the gateways that a new revision gets."""

    public: str | None
    """None if there is none."""
    fault: str = ""
    """Why there is none, and what to do."""


@dataclass(frozen=True)
class GatewayReports:
    """The gateways' reports about the service now, and the key by which replicas know gateways."""

    loads: Mapping[str, PodLoad] = field(default_factory=dict)
    """By the pods' uids. Empty if nobody asked them."""
    demand: Demand = UNKNOWN_DEMAND
    key: GatewayKey | None = None
    """None if the service needs none."""


@dataclass(frozen=True)
class ModelReports:
    """The observations of the model on its way to the pods, and in them."""

    claim: Claim | None = None
    """The claim of `spec.model.cache`, or the claim of a model whose revision is to be made.

    None if there is neither, or if the operator may not read it.
    """
    looking_since: float | None = None
    """Since when this operator waits for a look at the model in a claim, in seconds since 1970."""
    fetched: Mapping[str, Fetched] = field(default_factory=dict)
    """The progress of pods that fetch it, by name, where known."""
    replicas: Mapping[str, ReplicaStatus] = field(default_factory=dict)
    """The device and limits of pods, by name, where known."""


@dataclass(frozen=True)
class Nodes:
    """The nodes that matter to a plan. Both are empty if the operator may not read nodes."""

    departures: Mapping[str, str] = field(default_factory=dict)
    """The nodes that are being emptied, and why."""
    gpus: Mapping[str, GpuNode] = field(default_factory=dict)
    """The nodes that have GPUs."""


@dataclass(frozen=True)
class NameClaim:
    """The service's claim to its model name."""

    standing: Standing = Standing.HELD
    """How it stands beside the claims of all other services."""
    former: tuple[str, ...] = ()
    """Names that lead to the service only because replicas still run with them."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """One service as the cache has it, with all other knowledge of it."""

    service: Obj
    children: tuple[Obj, ...] = ()
    pods: tuple[Obj, ...] = ()
    job_pods: tuple[Obj, ...] = ()
    """Pods of Jobs that ask a model's source, look at a model in a claim, or fetch one into a claim."""
    advice: Advice | None = None
    obstacles: Obstacles = Obstacles()
    gateways: GatewayReports = GatewayReports()
    model: ModelReports = ModelReports()
    nodes: Nodes = Nodes()
    name: NameClaim = NameClaim()
    worded_at: float | None = None
    """When this leader last wrote a status of which only words were new, in seconds since 1970."""

    @property
    def status(self) -> dict[str, Any]:
        """The status that the service has now."""
        status: dict[str, Any] = self.service.get("status", {})
        return status

    @property
    def uid(self) -> str:
        """The service's uid, which its children's ownerReferences name."""
        return str(self.service["metadata"]["uid"])

    @cached_property
    def jobs(self) -> Jobs:
        """The service's own Jobs, with their pods."""
        own = {key.name: obj for key, obj in self.owned().items() if key.kind == JOB.kind}
        return Jobs(own, self.job_pods)

    def owned(self) -> dict[ObjectId, Obj]:
        """Return the children that are this service's own."""
        return {object_id(child): child for child in self.children if is_owned(child, self.uid)}

    def find_foreign(self, wanted: Iterable[Obj]) -> frozenset[ObjectId]:
        """Return the names of the `wanted` children that others have: seen now, or met by earlier writes."""
        seen = {object_id(child) for child in self.children if not is_owned(child, self.uid)}
        return (self.obstacles.conflicts | seen) & {object_id(obj) for obj in wanted}

    def list_namesakes(self) -> frozenset[ObjectId]:
        """Return the children of an earlier service of this name. Garbage collection deletes them."""
        return frozenset(
            object_id(child) for child in self.children if is_of_earlier_service(child, self.service)
        )


def find_left_over(service: Obj, owned: frozenset[ObjectId], now: float) -> frozenset[ObjectId]:
    """Return the objects of an earlier service that will be gone soon.

    `now` is seconds since 1970.
    """
    made = parse_time(service["metadata"].get("creationTimestamp"))
    # If our clock differs by more than that, the duration is unknown.
    is_new = made is not None and abs(now - made) < LEFT_OVER_SECONDS
    return owned if is_new else frozenset()


def explain_left_over(left_over: AbstractSet[ObjectId]) -> str:
    """Return in words what the plan waits for: one object, because a list would change with each deletion."""
    kind, name = min(left_over)
    return f"an earlier InferenceService of this name left {kind} {name}; Kubernetes has to delete it first"
