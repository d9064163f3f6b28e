"""How the pods of replicas are placed, labelled and ended: `spec.pod`. Pure.

Each field has the name, the type and the meaning that a Pod gives it.
"""

from typing import Annotated, Any

from pydantic import ConfigDict, Field, model_validator

from millrace_operator.api.field_types import ATOMIC, ObjectName, Part

LabelValue = Annotated[str, Field(max_length=63, pattern=r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")]
GRACE_SECONDS = 630
"""The default time for the last answer of a leaving `millrace serve` (600), and END_SECONDS."""
SHORTEST_GRACE_SECONDS = 10
END_SECONDS = 30
"""The part of the grace after the last stream."""


def _add_spread_rules(schema: dict[str, Any]) -> None:
    schema["x-kubernetes-validations"] = [
        {
            "rule": "!has(self.minDomains) || self.whenUnsatisfiable == 'DoNotSchedule'",
            "message": "minDomains is for whenUnsatisfiable DoNotSchedule: write that, or leave it out",
            "fieldPath": ".minDomains",
        }
    ]


def _add_claim_rules(schema: dict[str, Any]) -> None:
    schema["x-kubernetes-validations"] = [
        {
            "rule": "has(self.resourceClaimName) != has(self.resourceClaimTemplateName)",
            "message": "write one of resourceClaimName (a claim that all replicas share) and "
            "resourceClaimTemplateName (a claim for each replica)",
        }
    ]


class Toleration(Part):
    """A taint that the replicas' pods tolerate, as in a Pod."""

    key: str | None = Field(
        default=None, max_length=317, description="The taint's key; left out with Exists: any key."
    )
    operator: str | None = Field(
        default=None,
        json_schema_extra={"enum": ["Exists", "Equal"]},
        description="How the key relates to the value: Exists, or Equal (what is assumed when left out).",
    )
    value: str | None = Field(
        default=None, max_length=63, description="The taint's value, with operator Equal."
    )
    effect: str | None = Field(
        default=None,
        json_schema_extra={"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
        description="The taint's effect; left out: any effect.",
    )
    toleration_seconds: int | None = Field(
        default=None,
        ge=0,
        description="How long a NoExecute taint is tolerated, in seconds; left out: for ever.",
    )


class EnvVar(Part):
    """One environment variable of the replica's container."""

    name: str = Field(
        min_length=1,
        max_length=256,
        pattern=r"^[-._a-zA-Z][-._a-zA-Z0-9]*$",
        description="The variable's name.",
    )
    value: str = Field(max_length=8192, description="The variable's value.")


class TopologySpreadConstraint(Part):
    """How evenly the replicas of a revision are spread, as in a Pod. The operator says which pods count."""

    model_config = ConfigDict(json_schema_extra=_add_spread_rules)

    max_skew: int = Field(
        ge=1,
        le=1000,
        description="By how many replicas two parts of the topology may differ.",
    )
    topology_key: str = Field(
        min_length=1,
        max_length=317,
        description="The nodes' label whose values are the parts, such as topology.kubernetes.io/zone.",
    )
    when_unsatisfiable: str = Field(
        json_schema_extra={"enum": ["DoNotSchedule", "ScheduleAnyway"]},
        description="DoNotSchedule: a replica that would break the rule waits. ScheduleAnyway: it is placed "
        "where it breaks it least.",
    )
    min_domains: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="With DoNotSchedule: how many parts there are to be at least.",
    )


class SecretReference(Part):
    """A Secret of the service's namespace, by its name. The operator never reads it."""

    name: ObjectName = Field(description="The Secret's name.")


class ResourceClaim(Part):
    """Devices claimed by dynamic resource allocation, as in a Pod. The replica's container uses all."""

    model_config = ConfigDict(json_schema_extra=_add_claim_rules)

    name: str = Field(
        min_length=1,
        max_length=63,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        description="What the pod calls the claim.",
    )
    resource_claim_name: ObjectName | None = Field(
        default=None,
        description="A ResourceClaim of this namespace, which all replicas share.",
    )
    resource_claim_template_name: ObjectName | None = Field(
        default=None,
        description="A ResourceClaimTemplate of this namespace; each replica gets a claim of its own.",
    )
    request: str | None = Field(
        default=None,
        min_length=1,
        max_length=127,
        description="The one request of the claim that the container uses; left out: all of them.",
    )

    @model_validator(mode="after")
    def _check_source(self) -> "ResourceClaim":
        if (self.resource_claim_name is None) is (self.resource_claim_template_name is None):
            raise ValueError("write one of resourceClaimName and resourceClaimTemplateName")
        return self


class PodOptions(Part):
    """How the replicas' pods are placed, labelled and ended."""

    node_selector: dict[str, LabelValue] = Field(
        default_factory=dict, max_length=16, description="Labels that a node must have to run a replica."
    )
    tolerations: list[Toleration] = Field(
        default_factory=list,
        max_length=16,
        json_schema_extra=ATOMIC,
        description="Taints of nodes that the replicas tolerate.",
    )
    priority_class_name: str | None = Field(
        default=None, min_length=1, max_length=253, description="The PriorityClass of the replicas' pods."
    )
    service_account_name: ObjectName | None = Field(
        default=None,
        description="A ServiceAccount of this namespace for the replicas' pods and for the Jobs that fetch a "
        "model: one to which a cloud gives a role, say. Its token is mounted nowhere. Default: one of the "
        "operator's own, without any right.",
    )
    image_pull_secrets: list[SecretReference] = Field(
        default_factory=list,
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        description="Secrets of this namespace with which the kubelet pulls the runtime's image.",
    )
    runtime_class_name: ObjectName | None = Field(
        default=None, description="The RuntimeClass that runs the replicas' pods, such as nvidia."
    )
    topology_spread_constraints: list[TopologySpreadConstraint] = Field(
        default_factory=list,
        max_length=8,
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["topologyKey", "whenUnsatisfiable"],
        },
        description="How evenly the replicas of a revision are spread over zones, racks or nodes.",
    )
    resource_claims: list[ResourceClaim] = Field(
        default_factory=list,
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        description="Devices claimed by dynamic resource allocation; the replica's container uses them all.",
    )
    termination_grace_period_seconds: int | None = Field(
        default=None,
        ge=SHORTEST_GRACE_SECONDS,
        le=86_400,
        description="How long a replica that leaves has to end, in seconds. Streams in flight may go on for "
        "all but the last 30 s of it, or for half of it where that is more. Default: 630. Spot nodes and "
        "cluster autoscalers end a pod after a time of their own; a longer grace does not help there.",
    )
    labels: dict[str, LabelValue] = Field(
        default_factory=dict,
        max_length=32,
        description="Labels added to the replicas' pods. Keys under millrace.dev/ are the operator's own.",
    )
    annotations: dict[str, Annotated[str, Field(max_length=4096)]] = Field(
        default_factory=dict,
        max_length=32,
        description="Annotations added to the replicas' pods. Keys under millrace.dev/ are the operator's.",
    )
    env: list[EnvVar] = Field(
        default_factory=list,
        max_length=64,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        description="Environment variables of the replica's container.",
    )

    @property
    def grace_seconds(self) -> int:
        """How much time a leaving replica has to end."""
        return self.termination_grace_period_seconds or GRACE_SECONDS

    @property
    def drain_seconds(self) -> int:
        """How long the streams of a leaving replica may go on."""
        return max(self.grace_seconds - END_SECONDS, self.grace_seconds // 2)
