"""What `status.scaling` rests on: the figures that `kubectl millrace explain` prints, flat."""

from typing import Annotated

from pydantic import Field

from millrace_operator.api.evidence_limits import NAME_LENGTH
from millrace_operator.api.field_types import ATOMIC, DATE_TIME, NumberText, Part
from millrace_operator.api.status_lines import LINE_LENGTH

Line = Annotated[str, Field(max_length=LINE_LENGTH)]


class Evidence(Part):
    """What a decision rests on. What is absent was not known. The leader's /decisions has all of it."""

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
    waiting: int | None = Field(default=None, ge=0, description="Requests in the replicas' queues.")
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
