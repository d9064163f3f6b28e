"""The InferenceService as pydantic types: the source of the CRD and the parser of what was applied.

A field is here only if it has an effect. The parser ignores what it does not know, so that an operator
and a CRD of different versions get along.
"""

import re
from enum import StrEnum
from typing import Annotated, Any

from pydantic import ConfigDict, Field, field_validator

from millrace_kubernetes.durations import parse_duration
from millrace_operator.api import rules
from millrace_operator.api.cost_types import Cost
from millrace_operator.api.field_types import DurationText, Part
from millrace_operator.api.model_types import Model
from millrace_operator.api.pod_types import PodOptions
from millrace_operator.api.versions import VERSION_MAX_LENGTH, VERSION_PATTERN

Quantity = Annotated[str | int, Field(json_schema_extra={"x-kubernetes-int-or-string": True})]


class ScalingMode(StrEnum):
    """Who decides the replica count."""

    AUTOMATIC = "Automatic"
    EXTERNAL = "External"
    DRY_RUN = "DryRun"


class ObjectiveMetric(StrEnum):
    """Latencies that an objective can bound."""

    TIME_TO_FIRST_TOKEN = "TimeToFirstToken"  # noqa: S105  a latency, no secret
    TIME_PER_OUTPUT_TOKEN = "TimePerOutputToken"  # noqa: S105  a latency, no secret
    END_TO_END_LATENCY = "EndToEndLatency"
    QUEUE_TIME = "QueueTime"


class Engine(Part):
    """Version and sizes of the engine. What is left out, the runtime chooses for the model and device."""

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
    """Over how many devices a replica's model lies."""

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


class Objective(Part):
    """A latency that the replicas must keep at a percentile of requests."""

    metric: ObjectiveMetric = Field(
        description="TimeToFirstToken (from a request's arrival to its first token), TimePerOutputToken "
        "(mean time between the tokens of one answer), EndToEndLatency (from a request's arrival to its last "
        "token) or QueueTime (from a request's arrival until a step first computes something of it)."
    )
    percentile: int = Field(
        ge=50, le=99, description="The share of requests, in percent, that must meet the target: 95 for P95."
    )
    target: DurationText = Field(description="The latency to keep, such as 2s or 50ms.")

    @property
    def target_seconds(self) -> float:
        """The target in seconds."""
        return parse_duration(self.target)


class Activation(Part):
    """How a service without replicas wakes."""

    max_wait: DurationText = Field(
        default="5m",
        description="How long the gateway holds a request for which there is no replica yet, such as 5m. "
        "Then it answers 503.",
    )


class Scaling(Part):
    """Who decides the replica count, and within which bounds."""

    mode: ScalingMode = Field(
        default=ScalingMode.AUTOMATIC,
        description="Automatic: the operator keeps just enough replicas to meet the objectives. External: "
        "the count is spec.replicas, written by kubectl scale, an HPA or KEDA. DryRun: the operator decides "
        "and explains in status but leaves the count as it is.",
    )
    min_replicas: int = Field(
        default=1,
        ge=0,
        le=1000,
        description="Fewest replicas in modes Automatic and DryRun. 0: in mode Automatic there is none while "
        "no request comes; otherwise as 1.",
    )
    max_replicas: int = Field(
        default=1, ge=1, le=1000, description="Most replicas in modes Automatic and DryRun."
    )
    scale_to_zero_after: DurationText = Field(
        default="10m",
        description="With minReplicas 0: how long no request may have come until the last replica goes, such "
        "as 10m.",
    )
    activation: Activation | None = Field(
        default=None, description="With minReplicas 0: how the service wakes when a request comes."
    )
    objectives: list[Objective] = Field(
        default_factory=list,
        max_length=8,
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["metric", "percentile"],
        },
        description="Latencies to keep; each pair of metric and percentile at most once. Without any, the "
        "operator keeps the replicas from being saturated.",
    )

    @property
    def may_rest(self) -> bool:
        """Whether there may be no replica while no request comes."""
        return self.mode is ScalingMode.AUTOMATIC and self.min_replicas == 0

    @property
    def least(self) -> int:
        """The fewest replicas of a service that does not rest."""
        return max(1, self.min_replicas)

    @property
    def hold_seconds(self) -> float:
        """How long a request waits for the first replica."""
        return parse_duration((self.activation or Activation()).max_wait)

    @property
    def rest_seconds(self) -> float:
        """How long no request may have come until the service rests."""
        return parse_duration(self.scale_to_zero_after)


class RolloutStrategy(StrEnum):
    """Where a new revision's replicas find room."""

    AUTOMATIC = "Automatic"
    SURGE = "Surge"
    REPLACE = "Replace"


class Rollback(StrEnum):
    """What becomes of a new revision that is not ready in time."""

    AUTOMATIC = "Automatic"
    NEVER = "Never"


class Promotion(StrEnum):
    """Who ends a canary."""

    AUTOMATIC = "Automatic"
    MANUAL = "Manual"


class CanaryOptions(Part):
    """How a new revision proves itself before it gets all replicas."""

    replicas: Quantity = Field(
        default=1,
        description="How many replicas the new revision gets at first: a number, or a share of the desired "
        "ones such as 10%, rounded up.",
    )
    duration: DurationText = Field(
        default="10m",
        description="How long they serve before the revision is promoted, such as 10m or 2h.",
    )
    promotion: Promotion = Field(
        default=Promotion.AUTOMATIC,
        description="Automatic: after duration. Manual: when somebody writes kubectl millrace promote; "
        "duration then says nothing.",
    )

    @field_validator("replicas")
    @classmethod
    def _check_replicas(cls, value: str | int) -> str | int:
        if not re.match(rules.CANARY_PATTERN, str(value)):
            raise ValueError(f"{value!r} is no number from 1 to 9999, and no share from 1% to 100%")
        return value

    def describe(self) -> str:
        """Return it in a line."""
        return f"canary {self.replicas}, {self.duration}, {self.promotion.value}"

    @property
    def duration_seconds(self) -> float:
        """The duration in seconds."""
        return parse_duration(self.duration)


class Rollout(Part):
    """How a changed model or engine replaces the old one."""

    strategy: RolloutStrategy = Field(
        default=RolloutStrategy.AUTOMATIC,
        description="Surge: there is one replica more than desired, and never fewer than desired serve. "
        "Replace: one old replica at a time makes room first; with a single replica nothing serves until the "
        "new one is ready. Automatic: Surge, and where there is no room for it and two or more replicas are "
        "desired, Replace.",
    )
    scheduling_timeout: DurationText = Field(
        default="5m",
        description="How long a replica may wait for room on a node, which a cluster autoscaler may be "
        "adding, until the service is Degraded, and until strategy Automatic replaces, such as 5m.",
    )
    progress_deadline: DurationText = Field(
        default="30m",
        description="How long a rollout may go on without another replica getting ready, such as 30m. Then "
        "the service is Degraded, and the rollout is rolled back. The old replicas serve meanwhile.",
    )
    rollback: Rollback = Field(
        default=Rollback.AUTOMATIC,
        description="Automatic: a revision that passes progressDeadline is given up for the last one that "
        "served with all its replicas, and not tried again until the spec changes. Never: it stays.",
    )

    canary: CanaryOptions | None = Field(
        default=None,
        description="A new revision gets a few replicas at first, and all of them when it is promoted. One "
        "that fails meanwhile is rolled back. Left out: it gets all as they become ready.",
    )

    def describe(self) -> str:
        """Return the way of a rollout in a line."""
        way = f"{self.strategy.value}, {self.scheduling_timeout}, {self.progress_deadline}"
        return way if self.canary is None else f"{way}, {self.canary.describe()}"

    @property
    def scheduling_timeout_seconds(self) -> float:
        """The time to wait for room, in seconds."""
        return parse_duration(self.scheduling_timeout)

    @property
    def progress_deadline_seconds(self) -> float:
        """The deadline in seconds."""
        return parse_duration(self.progress_deadline)


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
        description="Version and sizes of the engine in each replica; what is left out, the runtime chooses.",
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
    cost: Cost | None = Field(
        default=None,
        description="What a replica costs, for status and metrics. It changes no replica and no count.",
    )

    @property
    def lacks_count(self) -> bool:
        """Whether others write the count, and there is none yet that they could read."""
        return self.scaling.mode is ScalingMode.EXTERNAL and self.replicas is None
