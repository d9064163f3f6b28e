"""Where a model that is fetched is kept, so that not each pod downloads it. Pure."""

from enum import StrEnum

from pydantic import Field

from millrace_operator.resources.part import Part
from millrace_operator.resources.pod_types import ObjectName


class CacheType(StrEnum):
    """What keeps a fetched model."""

    NONE = "None"
    PERSISTENT_VOLUME_CLAIM = "PersistentVolumeClaim"


class ModelCache(Part):
    """What keeps a fetched model for all replicas."""

    type: CacheType = Field(
        default=CacheType.NONE,
        description="None: each pod fetches the model for itself. PersistentVolumeClaim: a Job fetches it "
        "once into a claim, and all pods read it there.",
    )
    claim_name: ObjectName | None = Field(
        default=None,
        description="With type PersistentVolumeClaim: an existing claim of this namespace, which many "
        "services may share. More than one replica needs access mode ReadWriteMany.",
    )

    @property
    def claim(self) -> str | None:
        """The claim's name; None where each pod fetches for itself."""
        return self.claim_name if self.type is CacheType.PERSISTENT_VOLUME_CLAIM else None


class CacheStatus(Part):
    """Where the model is kept."""

    claim_name: str = Field(max_length=253, description="The PersistentVolumeClaim.")
    path: str = Field(max_length=253, description="The model's folder in it.")
