"""The model: `spec.model` and `status.model`. Pure."""

from enum import StrEnum

from pydantic import Field

from millrace_operator.api.field_types import Line, ObjectName, Part
from millrace_runtime import contract


class CacheType(StrEnum):
    """What keeps a fetched model."""

    NONE = "None"
    PERSISTENT_VOLUME_CLAIM = "PersistentVolumeClaim"
    NODE_LOCAL = "NodeLocal"


class ModelCache(Part):
    """What keeps a fetched model for all replicas."""

    type: CacheType = Field(
        default=CacheType.NONE,
        description="None: each pod fetches the model for itself. PersistentVolumeClaim: a Job fetches it "
        "once into a claim, and all pods read it there. NodeLocal: the first pod on a node fetches it onto "
        "that node's own disk, for all pods of this namespace there; the chart's nodeCache prepares nodes.",
    )
    claim_name: ObjectName | None = Field(
        default=None,
        description="With type PersistentVolumeClaim: an existing claim of this namespace, which many "
        "services may share. More than one replica needs access mode ReadWriteMany.",
    )

    @property
    def claim(self) -> str | None:
        """The name of the claim that keeps the model; None if each pod fetches it for itself."""
        if self.type is CacheType.NODE_LOCAL:
            return contract.CLAIM_KEPT
        return self.claim_name if self.type is CacheType.PERSISTENT_VOLUME_CLAIM else None

    @property
    def is_on_nodes(self) -> bool:
        """Whether each node has another folder of that claim, which the pods on the node fill."""
        return self.type is CacheType.NODE_LOCAL


class CacheStatus(Part):
    """Where the model is kept."""

    claim_name: str = Field(max_length=253, description="The PersistentVolumeClaim.")
    path: str = Field(max_length=253, description="The model's folder in it.")


class Weights(StrEnum):
    """The number type of a model's matrices in memory."""

    FROM_CHECKPOINT = "FromCheckpoint"
    INT8 = "Int8"
    INT4 = "Int4"


class KvCacheFormat(StrEnum):
    """The number type of a model's keys and values in memory."""

    MODEL = "Model"
    FP8 = "Fp8"
    INT8 = "Int8"


class Quantization(Part):
    """How a model's numbers are rounded: it becomes smaller and faster, and slightly less exact."""

    weights: Weights = Field(
        default=Weights.FROM_CHECKPOINT,
        description="FromCheckpoint: as the model's files have them, quantised ones too. Int8, Int4: each "
        "replica rounds the matrices to 8 or 4 bits while it loads them; on CPUs only.",
    )
    kv_cache: KvCacheFormat = Field(
        default=KvCacheFormat.MODEL,
        description="Model: keys and values in the type that the model is served in. Fp8, Int8: in 8 bits, "
        "so that the same memory holds nearly twice the tokens. Fp8 is for GPUs of compute capability 8.9 or "
        "later; Int8 for every GPU and for CPUs.",
    )


class SpeculationMethod(StrEnum):
    """What guesses an answer's next tokens."""

    N_GRAM = "NGram"


class Speculation(Part):
    """How many tokens are guessed ahead, and by what. A step proves the guesses; the text stays the same."""

    method: SpeculationMethod = Field(
        description="NGram: the tokens that followed earlier in the same prompt and answer. It needs no "
        "second model and no memory.",
    )
    tokens: int = Field(
        default=4,
        ge=1,
        le=16,
        description="Most tokens that are guessed at once for a sequence. The engine guesses fewer where few "
        "come true, and while it computes many sequences.",
    )


class Credentials(Part):
    """The proof to a model's source that we may read the model."""

    secret_name: ObjectName = Field(
        description="A Secret of this namespace. Its keys become the variables of the container that fetches "
        "the model, such as HF_TOKEN or AWS_ACCESS_KEY_ID. For a registry it is one of type "
        "kubernetes.io/dockerconfigjson. The operator never reads it.",
    )


class Model(Part):
    """Which model to serve, and under which name."""

    uri: str = Field(
        min_length=9,
        max_length=1024,
        description="Where the model is. Each pod fetches it from hf://organisation/model@revision, a "
        "Hugging Face Hub; s3://bucket/folder; oci://registry/repository:tag; or https://host/folder. It "
        "needs no fetch at pvc://claim/path, a PersistentVolumeClaim of this namespace (mounted read-only), "
        "and at "
        "file:///absolute/path in the image.",
    )
    credentials: Credentials | None = Field(
        default=None,
        description="For a private model at hf://, s3:// or oci://, or for a host with a private certificate"
        " authority.",
    )
    cache: ModelCache = Field(
        default_factory=ModelCache,
        description="Where a fetched model is kept, so that not every pod downloads it.",
    )
    served_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        pattern=r"^[A-Za-z0-9]([-A-Za-z0-9._:/]*[A-Za-z0-9])?$",
        description="The name clients write in a request's `model`. Default: metadata.name.",
    )
    quantization: Quantization = Field(
        default_factory=Quantization, description="How the model's numbers are rounded."
    )
    speculation: Speculation | None = Field(
        default=None,
        description="Guesses tokens ahead, so that a step can yield several of an answer. Default: none.",
    )


PRINTABLE = "^[ -~]+$"
MOST_WORKERS, MOST_TOKENS = 4096, 2**40
"""No replica comes near these numbers. A larger one is not ours."""


class ReplicaStatus(Part):
    """What a replica computes with, and how much it holds, as it reports itself."""

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
    kv_cache: str = Field(
        default="Model",
        min_length=1,
        max_length=32,
        pattern=PRINTABLE,
        description="How keys and values are kept: Model, Fp8 or Int8.",
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
        default=None,
        ge=0,
        description="Size of the files that are fetched, or that replicas read from a claim.",
    )
    fetched: str | None = Field(
        default=None,
        max_length=16,
        pattern=r"^([0-9]{1,3}%|[0-9]+(\.[0-9])?(B|kB|MB|GB))$",
        description="How much of the model has been fetched, such as 42%, as ModelReady says it; an amount "
        "such as 1.6GB where the source does not report the sizes. Absent while nothing is being fetched.",
    )
    cache: CacheStatus | None = Field(
        default=None,
        description="Where the pods of the revision to run read the model; absent if each fetches it, and "
        "until it is there.",
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
    quantization: str | None = Field(
        default=None,
        max_length=32,
        description="How the files quantise its matrices, such as FP8 or INT4; absent if they do not.",
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
        "kernels, such as avx512_bf16. Absent until Prometheus reports it.",
    )
    serving: Line | None = Field(
        default=None,
        description="The same replica's kind of device, type, weights and workers, and how much it holds.",
    )
