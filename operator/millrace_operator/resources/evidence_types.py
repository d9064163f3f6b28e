"""What `status.scaling` rests on: figures, candidates, objectives, the model's fit, changes so far."""

from typing import Annotated

from pydantic import Field

from millrace_operator.resources.evidence_limits import (
    NAME_LENGTH,
    NUM_CANDIDATES,
    NUM_REJECTED,
    REASON_LENGTH,
    WORDS_LENGTH,
)
from millrace_operator.resources.part import ATOMIC, DATE_TIME, NumberText, Part
from millrace_operator.resources.types import ObjectiveMetric


class Load(Part):
    """What came, and what a replica could do with it, at one moment. What is absent was not known."""

    arrivals_per_second: NumberText | None = Field(default=None, description="Requests a second.")
    prompt_tokens: NumberText | None = Field(default=None, description="Tokens of a prompt, on average.")
    generation_tokens: NumberText | None = Field(default=None, description="Tokens of an answer, on average.")
    per_replica_per_second: NumberText | None = Field(
        default=None, description="Requests a second planned for one replica."
    )


class ScaleChange(Part):
    """One change of the count."""

    at: str = Field(json_schema_extra=DATE_TIME, description="When.")
    from_: int = Field(alias="from", ge=0, description="The count before.")
    to: int = Field(ge=0, description="The count after.")
    reason: str = Field(max_length=NAME_LENGTH, description="Why, in one word for programs.")
    binding: str = Field(
        default="", max_length=REASON_LENGTH, description="The term of the decision that set the count."
    )
    message: str = Field(
        default="", max_length=WORDS_LENGTH, description="Why, with the numbers at that time."
    )
    load: Load | None = Field(
        default=None, description="The load at that time: beside that of the change before it is the cause."
    )


class Candidate(Part):
    """A count that a rule asked for."""

    name: str = Field(max_length=NAME_LENGTH, description="The rule.")
    replicas: int = Field(ge=0, description="What it asked for.")


class ReplicaStates(Part):
    """How many replicas are in which state."""

    ready: int = Field(ge=0, description="Replicas that answer.")
    starting: int = Field(ge=0, description="Replicas that are being created or load the model.")
    starting_since: str | None = Field(
        default=None,
        json_schema_extra=DATE_TIME,
        description="When the one that has been starting for longest was created.",
    )
    failing: int = Field(ge=0, description="Replicas that can't start; the condition Degraded says why.")
    unschedulable: int = Field(ge=0, description="Replicas that no node has room for.")
    unschedulable_message: str | None = Field(
        default=None, max_length=WORDS_LENGTH, description="What the scheduler says of one of them."
    )


class ObjectiveState(Part):
    """An objective, and the latency measured."""

    metric: ObjectiveMetric = Field(description="The latency.")
    percentile: int = Field(ge=0, le=100, description="Its percentile.")
    target_seconds: NumberText = Field(description="The latency to keep.")
    measured_seconds: NumberText | None = Field(
        default=None, description="The percentile over the last minute; absent without enough requests."
    )
    samples: int | None = Field(default=None, ge=0, description="Requests that were measured in that time.")
    burn_rate: NumberText | None = Field(
        default=None,
        description="How many times as many requests were late, in that time, as the objective allows.",
    )
    spent_seconds: NumberText | None = Field(
        default=None,
        description="Spent of its error budget beyond what is allowed: at 120 a replica more is asked for.",
    )
    state: str = Field(
        json_schema_extra={"enum": ["Met", "Missed", "Unknown", "Infeasible"]},
        description="Met, Missed, Unknown (too few requests, or a target between two bounds of what is "
        "measured), or Infeasible (an idle replica misses it).",
    )
    since: str = Field(json_schema_extra=DATE_TIME, description="Since when this state was seen.")


class CountInTime(Part):
    """What would be in time with a count."""

    replicas: int = Field(ge=1, description="The count.")
    in_time: NumberText = Field(description="The part of the requests; 0: none, or the queue would grow.")
    seconds: NumberText | None = Field(
        default=None,
        description="The percentile of the latency; absent where queues would grow or a batch has no room.",
    )


class Attainment(Part):
    """What would be in time at the present load with other counts, and how true such predictions were."""

    error: NumberText = Field(
        description="By how much predictions for the replicas there were differed from what was measured, "
        "on average over the last hour's requests, as a part of all."
    )
    metric: ObjectiveMetric | None = Field(
        default=None, description="Of the objective that is nearest to being missed; absent above 0.02."
    )
    percentile: int | None = Field(default=None, ge=0, le=100, description="What it promises.")
    counts: list[CountInTime] = Field(
        default_factory=list,
        max_length=6,
        json_schema_extra=ATOMIC,
        description="The counts next to the present one and to the one decided.",
    )


class ModelFit(Part):
    """The model of a step: alpha + beta * tokens + gamma * context tokens."""

    alpha_seconds: NumberText = Field(description="Of an empty step.")
    beta_seconds_per_token: NumberText = Field(description="For each token computed.")
    gamma_seconds_per_context_token: NumberText = Field(description="For each token whose KV is read.")
    relative_error: NumberText | None = Field(
        default=None, description="Mean error of its predictions, as a part of what was measured."
    )
    samples: int = Field(ge=0, description="How many it has learned from.")
    fitted: bool = Field(description="Whether it is good enough to plan with.")
    tried: bool = Field(
        default=False,
        description="Whether replicas only tried it, before any request.",
    )


class RejectedSignal(Part):
    """A signal that is unknown."""

    signal: str = Field(max_length=NAME_LENGTH, description="Which.")
    reason: str = Field(max_length=REASON_LENGTH, description="Why it is unknown.")


class Evidence(Part):
    """What a decision rests on. What is absent was not known."""

    observed_at: str = Field(json_schema_extra=DATE_TIME, description="When all this was seen.")
    oldest_sample_at: str | None = Field(
        default=None,
        json_schema_extra=DATE_TIME,
        description="When the replica was scraped whose newest sample is the oldest.",
    )
    arrivals_per_second: NumberText | None = Field(default=None, description="Requests a second.")
    forecast_per_second: NumberText | None = Field(
        default=None, description="Requests a second expected after a cold start, at most."
    )
    margin_per_second: NumberText | None = Field(
        default=None, description="The part of them that is there since earlier forecasts were too low."
    )
    correction: NumberText | None = Field(
        default=None,
        description="How many times that load is planned for, since the model promised too much; above 1.",
    )
    flaps: int | None = Field(
        default=None,
        ge=0,
        description="Counts that were raised soon after they had fallen, in three hours: with two or more "
        "the window for scaling down is three times as long.",
    )
    futile_steps: int | None = Field(
        default=None,
        ge=0,
        description="Replicas that were added in turn for a missed objective and left as many requests late: "
        "after two no more are added for that.",
    )
    prompt_tokens: NumberText | None = Field(
        default=None, description="Tokens of a prompt, on average over some hundred requests."
    )
    generation_tokens: NumberText | None = Field(
        default=None, description="Tokens of an answer, on average over some hundred requests."
    )
    generated_tokens_per_second: NumberText | None = Field(
        default=None, description="Tokens a second that are generated: arrivals by an answer's mean length."
    )
    per_replica_per_second: NumberText | None = Field(
        default=None, description="Requests a second planned for one replica."
    )
    limit: str | None = Field(
        default=None, max_length=NAME_LENGTH, description="What limits a replica: saturation or an objective."
    )
    running: int | None = Field(default=None, ge=0, description="Sequences that are being computed.")
    waiting: int | None = Field(default=None, ge=0, description="Requests in the replicas' queues.")
    replicas: ReplicaStates | None = Field(default=None, description="How many replicas are in which state.")
    candidates: list[Candidate] = Field(
        default_factory=list,
        max_length=NUM_CANDIDATES,
        json_schema_extra=ATOMIC,
        description="The count that each rule asked for; the largest wins.",
    )
    limits: list[Annotated[str, Field(max_length=NAME_LENGTH)]] = Field(
        default_factory=list,
        max_length=NUM_CANDIDATES,
        json_schema_extra=ATOMIC,
        description="Bounds and limits of speed that bent the largest candidate.",
    )
    objectives: list[ObjectiveState] = Field(
        default_factory=list,
        max_length=8,
        json_schema_extra=ATOMIC,
        description="Each objective, and the latency measured.",
    )
    attainment: Attainment | None = Field(
        default=None,
        description="What other counts would do. Absent before enough requests were compared.",
    )
    model: ModelFit | None = Field(default=None, description="The model of a replica's step.")
    rejected: list[RejectedSignal] = Field(
        default_factory=list,
        max_length=NUM_REJECTED,
        json_schema_extra=ATOMIC,
        description="Signals that are unknown.",
    )
