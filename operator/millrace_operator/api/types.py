"""The InferenceService as pydantic types: the source of the CRD and the parser of what was applied.

`Spec` and `Status` are whole here. Their larger parts have files of their own: `access_types`, `model_types`,
`pod_types`, `rollout_types` and `scaling_types`, each with the part of the spec and the part of the status.

A field is here only if it has an effect. The parser ignores unknown fields, so that an operator and a CRD of
different versions get along.
"""

from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field

from millrace_operator.api import rules
from millrace_operator.api.access_types import Access, Authentication, DefaultAccess
from millrace_operator.api.annotations import LONGEST_ORDER
from millrace_operator.api.field_types import DATE_TIME, NumberText, Part, Quantity
from millrace_operator.api.model_types import Model, ModelStatus
from millrace_operator.api.pod_types import PodOptions
from millrace_operator.api.prices import CURRENCY_LENGTH, PRICE_LENGTH
from millrace_operator.api.rollout_types import RejectedRevision, ReplacementStatus, Rollout, RolloutStatus
from millrace_operator.api.scaling_types import Scaling, ScalingMode, ScalingStatus

VERSION_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._+-]*$"
VERSION_MAX_LENGTH = 64


class Engine(Part):
    """Version and sizes of the engine. The runtime chooses what is left out."""

    version: str | None = Field(
        default=None,
        min_length=1,
        max_length=VERSION_MAX_LENGTH,
        pattern=VERSION_PATTERN,
        description="Version of the runtime, one that the operator has an image of. Default: a revision "
        "keeps the image that it was made with, and a new one gets the operator's own.",
    )

    max_model_length: int | None = Field(
        default=None,
        ge=2,
        le=16_777_216,
        description="Longest sequence, prompt and output together, in tokens. Default: the model's own.",
    )
    max_sequences: int | None = Field(
        default=None, ge=1, le=4096, description="Most sequences that one replica computes at the same time."
    )
    max_batched_tokens: int | None = Field(
        default=None,
        ge=16,
        le=1_048_576,
        description="Most tokens that one step computes, prompts and outputs together.",
    )


class Parallelism(Part):
    """How many devices share a replica's model."""

    tensor: int | None = Field(
        default=None,
        ge=1,
        le=64,
        description="Workers that hold the model together, each on a GPU of its own or with its part of the "
        "cores. Default: one for each whole GPU in resources.limits (nvidia.com/gpu, amd.com/gpu), else 1.",
    )


class Resources(Part):
    """Compute resources of each replica, as in a Pod's container."""

    limits: dict[str, Quantity] = Field(
        default_factory=dict,
        max_length=16,
        description="Most a replica may use, by resource name: cpu, memory, nvidia.com/gpu, …",
    )
    requests: dict[str, Quantity] = Field(
        default_factory=dict,
        max_length=16,
        description="What a replica is guaranteed, by resource name. Default: its limits.",
    )


PriceText = Annotated[str, Field(max_length=PRICE_LENGTH)]


class Cost(Part):
    """The price of a replica. A price that is missing here is the cluster's, if the currency is the same."""

    accelerator_hour: PriceText | None = Field(
        default=None,
        description='Price of one accelerator for an hour, as decimal text such as "2.50". The accelerator '
        "is the one resource in resources.limits whose name has a slash, such as nvidia.com/gpu.",
    )
    resource_hours: dict[str, PriceText] = Field(
        default_factory=dict,
        max_length=16,
        description="Price of one unit of a resource for an hour, by the name that it has in "
        "resources.limits, as decimal text. One unit of cpu is a CPU; of memory and storage it is 1 GiB.",
    )
    currency: str | None = Field(
        default=None,
        max_length=CURRENCY_LENGTH,
        description="Three letters of ISO 4217, such as EUR. Default: the cluster's own.",
    )


_ROLLOUT_DEFAULT: dict[str, Any] = {
    "strategy": "Automatic",
    "schedulingTimeout": "5m",
    "progressDeadline": "30m",
    "rollback": "Automatic",
}
_SCALING_DEFAULT: dict[str, Any] = {
    "mode": "Automatic",
    "minReplicas": 1,
    "maxReplicas": 1,
    "scaleToZeroAfter": "10m",
}


def _add_spec_rules(schema: dict[str, Any]) -> None:
    schema["x-kubernetes-validations"] = rules.SPEC_RULES


class Spec(Part):
    """What is wanted."""

    model_config = ConfigDict(json_schema_extra=_add_spec_rules)

    model: Model = Field(description="Which model to serve, and under which name.")
    engine: Engine = Field(
        default_factory=Engine,
        description="Version and sizes of the engine in each replica; the runtime chooses what is left out.",
    )
    parallelism: Parallelism = Field(
        default_factory=Parallelism, description="Over how many devices a replica's model lies."
    )
    resources: Resources = Field(
        default_factory=Resources, description="Compute resources of each replica, as in a Pod's container."
    )
    pod: PodOptions = Field(
        default_factory=PodOptions, description="How the replicas' pods are placed, labelled and ended."
    )
    replicas: int | None = Field(
        default=None,
        ge=0,
        le=1000,
        description="The replica count in mode External, where kubectl scale, an HPA or KEDA write it. Where "
        "it is absent the operator writes the present count once. In the other modes leave it out.",
    )
    scaling: Scaling = Field(
        default_factory=Scaling,
        json_schema_extra={"default": _SCALING_DEFAULT},
        description="Who decides the replica count, within which bounds, for which latencies.",
    )
    rollout: Rollout = Field(
        default_factory=Rollout,
        json_schema_extra={"default": _ROLLOUT_DEFAULT},
        description="How a changed model or engine replaces the old one.",
    )
    access: Access = Field(
        default_factory=Access,
        description="Who may use the service, and how much. What is left out is the platform's.",
    )
    cost: Cost | None = Field(
        default=None,
        description="What a replica costs, for status and metrics. It changes no replica and no count.",
    )

    @property
    def lacks_count(self) -> bool:
        """Whether others write the count, and have not written one yet."""
        return self.scaling.mode is ScalingMode.EXTERNAL and self.replicas is None

    def complete(self, default: DefaultAccess) -> Self:
        """Return the spec with the platform's mode of authentication, if it has none of its own.

        It then names no Secret, which means the platform's.
        """
        platform = default.access.authentication
        if platform is None or self.access.authentication is not None:
            return self
        access = self.access.model_copy(update={"authentication": Authentication(mode=platform.mode)})
        return self.model_copy(update={"access": access})


class Condition(Part):
    """One independent truth about the resource."""

    type: str = Field(max_length=64, description="Which truth: Ready, Progressing, Degraded, ModelReady, …")
    status: str = Field(
        json_schema_extra={"enum": ["True", "False", "Unknown"]}, description="True, False or Unknown."
    )
    reason: str = Field(
        min_length=1,
        max_length=64,
        pattern=r"^[A-Z][A-Za-z0-9]*$",
        description="Why, in one word for programs.",
    )
    message: str = Field(
        max_length=4096, description="Why, in words for people; names the pod and its cause."
    )
    last_transition_time: str = Field(
        json_schema_extra={"format": "date-time"}, description="When the status last changed."
    )
    observed_generation: int = Field(
        default=0, ge=0, description="The metadata.generation that this speaks of."
    )


class CostStatus(Part):
    """What the replicas cost now."""

    currency: str = Field(max_length=CURRENCY_LENGTH, description="Of every sum here.")
    replicas: int = Field(
        ge=0, description="Replicas that hold a node's resources now: starting and draining ones too."
    )
    priced_resources: str = Field(
        default="",
        max_length=1024,
        description="What has a price in a new replica: amount, name, and a unit's price for an hour.",
    )
    replica_per_hour: NumberText = Field(description="What a new replica costs an hour.")
    per_hour: NumberText = Field(description="What all these replicas cost an hour.")
    per_million_tokens: NumberText | None = Field(
        default=None,
        description="The cost of a million generated tokens at the load of status.scaling.evidence; absent "
        "where that load is unknown or too small.",
    )
    peak_replicas: int = Field(ge=0, description="The largest count of the last seven days, as far as known.")
    peak_at: str = Field(
        json_schema_extra=DATE_TIME,
        description="When the count last fell from the peak; while it has not fallen, when it rose to it.",
    )
    saved_per_hour: NumberText = Field(
        description="How much more as many replicas as at the peak would cost an hour."
    )


class Status(Part):
    """What is observed."""

    observed_generation: int = Field(
        default=0, ge=0, description="The metadata.generation that this status speaks of."
    )
    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        description="Independent truths: Ready, Progressing, Degraded, UpToDate, ModelReady, "
        "AccessReady, ScalingActive, ObjectivesMet, Pinned, SpecCurrent.",
    )
    replicas: int = Field(default=0, ge=0, description="Replicas that exist, without the one a rollout adds.")
    ready_replicas: int = Field(default=0, ge=0, description="Replicas that answer requests now.")
    selector: str = Field(
        default="", max_length=512, description="Label selector of the replicas' pods, for an HPA."
    )
    url: str = Field(default="", max_length=512, description="Where clients in the cluster reach the model.")
    current_revision: str | None = Field(
        default=None, max_length=64, description="The revision that last served with all its replicas."
    )
    update_revision: str | None = Field(
        default=None, max_length=64, description="The revision that the spec asks for."
    )
    model: ModelStatus | None = Field(default=None, description="The model as clients see it.")
    scaling: ScalingStatus | None = Field(default=None, description="The replica count decided, and why.")
    rollout: RolloutStatus | None = Field(default=None, description="A change of revision under way.")
    replacement: ReplacementStatus | None = Field(
        default=None, description="Replicas on nodes that are being emptied; absent without one."
    )
    rejected_revision: RejectedRevision | None = Field(
        default=None,
        description="The revision that the spec asks for, if it was rolled back; until the spec changes.",
    )
    spent_order: str | None = Field(
        default=None,
        max_length=LONGEST_ORDER,
        description="The annotation millrace.dev/rollout, if it no longer counts: its revision is not "
        "requested, or given up.",
    )
    cost: CostStatus | None = Field(
        default=None, description="What the replicas cost; absent where no resource of theirs has a price."
    )
