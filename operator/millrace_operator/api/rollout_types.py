"""How a revision replaces another one: `spec.rollout`, and what status says of rollouts. Pure."""

import re
from enum import StrEnum

from pydantic import Field, field_validator

from millrace_kubernetes.durations import parse_duration
from millrace_operator.api import rules
from millrace_operator.api.field_types import DATE_TIME, DurationText, Part, Quantity


class RolloutStrategy(StrEnum):
    """Where a new revision's replicas find room."""

    AUTOMATIC = "Automatic"
    SURGE = "Surge"
    REPLACE = "Replace"


class Rollback(StrEnum):
    """What happens to a new revision that is not ready in time."""

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
        "duration has no effect then.",
    )

    @field_validator("replicas")
    @classmethod
    def _check_replicas(cls, value: str | int) -> str | int:
        if not re.match(rules.CANARY_PATTERN, str(value)):
            raise ValueError(f"{value!r} is no number from 1 to 9999, and no share from 1% to 100%")
        return value

    def describe(self) -> str:
        """Return these options in one line."""
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
        """Return how a rollout proceeds, in one line."""
        way = f"{self.strategy.value}, {self.scheduling_timeout}, {self.progress_deadline}"
        return way if self.canary is None else f"{way}, {self.canary.describe()}"

    @property
    def scheduling_timeout_seconds(self) -> float:
        """How long a replica may wait for room, in seconds."""
        return parse_duration(self.scheduling_timeout)

    @property
    def progress_deadline_seconds(self) -> float:
        """The deadline in seconds."""
        return parse_duration(self.progress_deadline)


class CanaryProgress(Part):
    """How far the canary of a revision is."""

    replicas: int = Field(ge=1, description="Replicas of the new revision until it is promoted.")
    ready_at: str | None = Field(
        default=None, json_schema_extra=DATE_TIME, description="Since when they serve."
    )
    promoted_at: str | None = Field(
        default=None, json_schema_extra=DATE_TIME, description="When the revision was promoted."
    )


class RejectionReason(StrEnum):
    """The reason for giving a revision up."""

    DEADLINE_EXCEEDED = "DeadlineExceeded"
    CANARY_FAILED = "CanaryFailed"
    ABORTED = "Aborted"


class RolloutStatus(Part):
    """A rollout in progress."""

    revision: str = Field(max_length=64, description="The revision that is being rolled out.")
    started_at: str = Field(json_schema_extra={"format": "date-time"}, description="When this rollout began.")
    progressed_at: str | None = Field(
        default=None,
        json_schema_extra={"format": "date-time"},
        description="When it began, or when a replica more than before became ready.",
    )
    ready_replicas: int = Field(default=0, ge=0, description="The most of its replicas that were ready.")
    method: str = Field(
        json_schema_extra={"enum": ["Surge", "Replace"]},
        description="Surge: one replica more than desired meanwhile. Replace: one old replica at a time "
        "makes room, because the scheduler found none.",
    )
    canary: CanaryProgress | None = Field(
        default=None, description="How far the revision's canary is; absent without one."
    )


class ReplacementStatus(Part):
    """Replicas that the operator replaces, because their nodes are being emptied."""

    started_at: str = Field(json_schema_extra=DATE_TIME, description="When the first was requested.")


class RejectedRevision(Part):
    """A revision that was given up."""

    revision: str = Field(max_length=64, description="The revision that the spec asks for.")
    at: str = Field(json_schema_extra={"format": "date-time"}, description="When it was given up.")
    way: str = Field(
        max_length=256, description="The spec.rollout that it was tried with: another one is another try."
    )
    reason: RejectionReason = Field(
        default=RejectionReason.DEADLINE_EXCEEDED,
        description="DeadlineExceeded: it was not ready in time. CanaryFailed: a replica of its canary "
        "ended. Aborted: somebody wrote kubectl millrace abort.",
    )
    message: str = Field(default="", max_length=1024, description="What its pods reported.")
