"""Where a model that is fetched is kept, so that not each pod downloads it. Pure."""

from enum import StrEnum

from pydantic import Field

from millrace_operator.api.base import Part
from millrace_operator.api.pod_types import ObjectName
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
        """The claim's name; None where each pod fetches for itself."""
        if self.type is CacheType.NODE_LOCAL:
            return contract.CLAIM_KEPT
        return self.claim_name if self.type is CacheType.PERSISTENT_VOLUME_CLAIM else None

    @property
    def is_on_nodes(self) -> bool:
        """Whether that claim is another folder on each node, and the pods there fill it."""
        return self.type is CacheType.NODE_LOCAL


class CacheStatus(Part):
    """Where the model is kept."""

    claim_name: str = Field(max_length=253, description="The PersistentVolumeClaim.")
    path: str = Field(max_length=253, description="The model's folder in it.")
