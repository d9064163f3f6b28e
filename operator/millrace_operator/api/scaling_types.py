"""The replica count: `spec.scaling` and `status.scaling`. Pure."""

from enum import StrEnum

from pydantic import Field

from millrace_kubernetes.durations import parse_duration
from millrace_operator.api.change_record import NUM_CHANGES
from millrace_operator.api.field_types import (
    ATOMIC,
    DATE_TIME,
    DurationText,
    Line,
    NumberText,
    Part,
)
from millrace_operator.api.status_lines import NAME_LENGTH


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
        description="With minReplicas 0: after how long without a request the last replica leaves, such as "
        "10m.",
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
        """For how long no request must have come before the service rests."""
        return parse_duration(self.scale_to_zero_after)


class Evidence(Part):
    """The figures behind a decision. An unknown figure is absent. The leader's /decisions has all of them."""

    observed_at: str = Field(json_schema_extra=DATE_TIME, description="When all this was seen.")
    arrivals_per_second: NumberText | None = Field(default=None, description="Requests a second.")
    forecast_per_second: NumberText | None = Field(
        default=None, description="Requests a second expected after a cold start, at most."
    )
    per_replica_per_second: NumberText | None = Field(
        default=None, description="Requests a second planned for one replica."
    )
    limit: str | None = Field(
        default=None, max_length=NAME_LENGTH, description="What limits a replica: saturation or an objective."
    )
    running: int | None = Field(default=None, ge=0, description="Sequences that are being computed.")
    waiting: int | None = Field(
        default=None, ge=0, description="Requests in the queues of replicas and gateways."
    )
    wanted_replicas: int | None = Field(
        default=None, ge=0, description="What the load asks for, before bounds and limits of speed."
    )
    futile_steps: int | None = Field(
        default=None,
        ge=0,
        description="Replicas that were added in turn for a missed objective and left as many requests late: "
        "after two no more are added for that.",
    )
    starting: int | None = Field(
        default=None,
        ge=0,
        description="Replicas that are being created or load the model; absent without one.",
    )
    starting_since: str | None = Field(
        default=None,
        json_schema_extra=DATE_TIME,
        description="When the one that has been starting for longest was created.",
    )
    failing: int | None = Field(
        default=None, ge=0, description="Replicas that can't start; absent without one."
    )
    unschedulable: int | None = Field(
        default=None, ge=0, description="Replicas that no node has room for; absent without one."
    )
    learning: Line | None = Field(
        default=None, description="What is missing of a replica's model; absent once requests have shown it."
    )
    latencies: list[Line] = Field(
        default_factory=list,
        max_length=8,
        json_schema_extra=ATOMIC,
        description="A line for each objective: its state, and what was measured over the last minute.",
    )


class ScalingStatus(Part):
    """The decided replica count, and the reason. The Deployments follow it."""

    mode: ScalingMode = Field(description="The scaling mode that the count was decided in.")
    desired_replicas: int = Field(ge=0, description="The replica count that the Deployments follow.")
    recommended_replicas: int | None = Field(
        default=None, ge=0, description="What the autoscaler would choose; in mode DryRun it is not followed."
    )
    reason: str = Field(max_length=64, description="Why this count, in one word for programs.")
    message: str = Field(
        default="", max_length=4096, description="Why this count, with the numbers at that time."
    )
    binding: str = Field(
        default="", max_length=256, description="The term of the decision that set the count."
    )
    last_changes: list[Line] = Field(
        default_factory=list,
        max_length=NUM_CHANGES,
        json_schema_extra=ATOMIC,
        description="A line for each of the last changes of the count, the newest last.",
    )
    evidence: Evidence | None = Field(
        default=None, description="The figures that the count rests on, as they were at observedAt."
    )
