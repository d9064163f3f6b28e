"""The status of an InferenceService: what the operator writes and reads back."""

from enum import StrEnum

from pydantic import Field

from millrace_operator.api.annotations.rollout_order import LONGEST
from millrace_operator.api.cost_types import CostStatus
from millrace_operator.api.evidence_limits import NUM_CHANGES
from millrace_operator.api.evidence_types import Evidence, Line
from millrace_operator.api.field_types import ATOMIC, DATE_TIME, Part
from millrace_operator.api.model_types import CacheStatus
from millrace_operator.api.types import ScalingMode

PRINTABLE = "^[ -~]+$"
MOST_WORKERS, MOST_TOKENS = 4096, 2**40
"""No replica comes near them: what does is none of ours."""


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


class ReplicaStatus(Part):
    """What a replica computes with, and how much it holds, in its own words."""

    device: str = Field(
        min_length=1, max_length=32, pattern=PRINTABLE, description="What computes: cpu or cuda."
    )
    device_name: str = Field(
        min_length=1,
        max_length=128,
        pattern=PRINTABLE,
        description="A GPU's own name; on CPUs the kernels that compute, such as avx512_bf16.",
    )
    dtype: str = Field(
        min_length=1,
        max_length=32,
        pattern=PRINTABLE,
        description="The type that is served, such as bfloat16.",
    )
    weights: str = Field(
        min_length=1,
        max_length=32,
        pattern=PRINTABLE,
        description="How the weight matrices are kept: FromCheckpoint, Int8 or Int4.",
    )
    tensor_parallel: int = Field(
        ge=1, le=MOST_WORKERS, description="How many workers hold the model together."
    )
    kv_cache_tokens: int = Field(ge=0, le=MOST_TOKENS, description="Tokens that its KV cache holds.")
    max_model_length: int = Field(
        ge=1, le=MOST_TOKENS, description="Tokens of prompt and output together at most."
    )
    max_sequences: int = Field(
        ge=1, le=MOST_TOKENS, description="Sequences that are computed at the same time at most."
    )


class ModelStatus(Part):
    """The model as clients see it."""

    served_name: str = Field(max_length=253, description="The name clients write in a request's `model`.")
    uri: str = Field(max_length=1024, description="Where the model is of the revision that is to run.")
    resolved_revision: str | None = Field(
        default=None,
        max_length=128,
        description="The revision of the model that all replicas of the newest revision have, as its source "
        "names it: a Hub's commit. Absent where no pod fetches the model, and until it is known.",
    )
    size_bytes: int | None = Field(
        default=None, ge=0, description="Of the files that are fetched, or that replicas read from a claim."
    )
    fetched: str | None = Field(
        default=None,
        max_length=16,
        pattern=r"^([0-9]{1,3}%|[0-9]+(\.[0-9])?(B|kB|MB|GB))$",
        description="How much of the model has been fetched, such as 42%, as ModelReady says it; an amount "
        "such as 1.6GB where the source does not tell the sizes. Absent while nothing is being fetched.",
    )
    cache: CacheStatus | None = Field(
        default=None,
        description="Where the model is that the pods of the revision to run read; absent where each pod "
        "fetches it, and until it is there.",
    )
    architecture: str | None = Field(
        default=None, max_length=80, description="The architecture that the model's config.json names."
    )
    parameters: int | None = Field(default=None, ge=0, description="How many numbers the model's files have.")
    dtype: str | None = Field(
        default=None,
        max_length=32,
        description="The type that its numbers are served in, such as bfloat16: as config.json or the files "
        "name it, before any rounding of the weights.",
    )
    context_length: int | None = Field(
        default=None, ge=0, description="Positions that the model was trained for, in tokens."
    )
    fit: str | None = Field(
        default=None,
        max_length=32,
        description="Whether the model fits the devices asked for, before a pod has it: Fits, Tight, "
        "DoesNotFit, Unsupported, or Unknown where the device is not known.",
    )
    fit_message: str | None = Field(default=None, max_length=2048, description="The arithmetic of that.")
    device: str | None = Field(
        default=None,
        max_length=128,
        description="What a replica of the current revision computes with: a GPU's own name; on CPUs the "
        "kernels, such as avx512_bf16. Absent until Prometheus says so.",
    )
    serving: Line | None = Field(
        default=None,
        description="The same replica's kind of device, type, weights and workers, and how much it holds.",
    )


class ScalingStatus(Part):
    """The replica count decided, and why. The Deployments follow it."""

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
    """Why a revision was given up."""

    DEADLINE_EXCEEDED = "DeadlineExceeded"
    CANARY_FAILED = "CanaryFailed"
    ABORTED = "Aborted"


class RolloutStatus(Part):
    """A change of revision under way."""

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
    """Replicas that are replaced, as their nodes are being emptied."""

    started_at: str = Field(json_schema_extra=DATE_TIME, description="When the first of them was to be.")


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
    message: str = Field(default="", max_length=1024, description="What its pods said.")


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
        "AccessReady, ScalingActive, ObjectivesMet, Pinned.",
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
        max_length=LONGEST,
        description="What the annotation millrace.dev/rollout says, where it counts no more: of a revision "
        "that the spec does not ask for, or of one that was given up since.",
    )
    cost: CostStatus | None = Field(
        default=None, description="What the replicas cost; absent where no resource of theirs has a price."
    )
