"""Which model to serve: where it is, what is kept of it, and in which numbers. Pure."""

from enum import StrEnum

from pydantic import Field

from millrace_operator.api.base import Part
from millrace_operator.api.cache_types import ModelCache
from millrace_operator.api.pod_types import ObjectName


class Weights(StrEnum):
    """What a model's matrices are kept in."""

    FROM_CHECKPOINT = "FromCheckpoint"
    INT8 = "Int8"
    INT4 = "Int4"


class Quantization(Part):
    """How a model's numbers are rounded: smaller and faster, and a little less exact."""

    weights: Weights = Field(
        default=Weights.FROM_CHECKPOINT,
        description="FromCheckpoint: as the model's files have them. Int8, Int4: each replica rounds the "
        "matrices to 8 or 4 bits while it loads them; on CPUs only.",
    )


class Credentials(Part):
    """What shows a model's source that the model may be read."""

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
        "Hugging Face Hub; s3://bucket/folder; oci://registry/repository:tag; or https://host/folder. It is "
        "at hand at pvc://claim/path, a PersistentVolumeClaim of this namespace (mounted read-only), and at "
        "file:///absolute/path in the image.",
    )
    credentials: Credentials | None = Field(
        default=None,
        description="For a model at hf://, s3:// or oci:// that not everybody may read, or at a host whose "
        "certificate is of a private authority.",
    )
    cache: ModelCache = Field(
        default_factory=ModelCache,
        description="Where a model that is fetched is kept, so that not each pod downloads it.",
    )
    served_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        pattern=r"^[A-Za-z0-9]([-A-Za-z0-9._:/]*[A-Za-z0-9])?$",
        description="The name clients write in a request's `model`. Default: metadata.name.",
    )
    quantization: Quantization = Field(
        default_factory=Quantization, description="How the model's numbers are rounded while they are loaded."
    )
