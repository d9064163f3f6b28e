"""What is known of a node's disk, its models, and the pods that use them. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from millrace_runtime import contract
from millrace_runtime.contract import ANNOTATION_KEPT_BYTES, LABEL_KEPT

Uses = Mapping[str, int]
"""The names of the models that pods of this node read, and the size of each; 0 where it is not known."""
_OVER = ("Succeeded", "Failed")
_MOST_DIGITS = 18


class ModelKey(NamedTuple):
    """A model of a namespace: the name of its folder there."""

    namespace: str
    folder: str

    @property
    def name(self) -> str:
        """By which pods and nodes name it."""
        return contract.name_kept(self.namespace, f"{contract.FOLDER_KEPT}/{self.folder}")


@dataclass(frozen=True)
class Model:
    """A model's folder as it is on the disk, whole or not."""

    key: ModelKey
    num_bytes: int
    """What it takes of the disk."""
    whole_bytes: int | None
    """The size of the model's files; None where not all of them are there."""
    used_at: float
    """When a pod of this node named it last."""
    is_closed: bool = False
    """Whether who made it lets nobody look into it, or it has no end: nobody knows its size, and it stays."""

    @property
    def is_whole(self) -> bool:
        """Whether it can be read as it is."""
        return self.whole_bytes is not None


class DiskSpace(NamedTuple):
    """What the disk has, whoever uses it."""

    total_bytes: int
    used_bytes: int


@dataclass(frozen=True)
class Look:
    """What was seen at one time."""

    space: DiskSpace
    models: tuple[Model, ...]
    uses: Mapping[str, Uses | None]
    """Of each namespace that may keep models; None where its pods could not be listed. Of one that may keep
    none any more, nobody may list them, and there may still be some.
    """

    @property
    def kept_bytes(self) -> int:
        """What the models take together."""
        return sum(model.num_bytes for model in self.models)

    def list_closed(self, namespace: str) -> list[str]:
        """Return the folders of a namespace that nobody can look into, in order."""
        return sorted(
            model.key.folder for model in self.models if model.is_closed and model.key.namespace == namespace
        )

    def may_be_in_use(self, key: ModelKey) -> bool:
        """Whether a pod of this node reads a model, or nobody knows."""
        uses = self.uses.get(key.namespace)
        return uses is None or key.name in uses

    @property
    def coming_bytes(self) -> int:
        """What pods of this node are about to fetch: of what they read, that which is not there yet.

        What is larger than the disk never comes, whatever a pod says of it.
        """
        there = {(model.key.namespace, model.key.name): model for model in self.models}
        return sum(
            _missing(num_bytes, there.get((namespace, name)))
            for namespace, uses in self.uses.items()
            for name, num_bytes in (uses or {}).items()
            if num_bytes <= self.space.total_bytes
        )


def _missing(num_bytes: int, model: Model | None) -> int:
    if model is None:
        return num_bytes
    return 0 if model.is_whole else max(0, num_bytes - model.num_bytes)


def read_uses(pods: Iterable[Mapping[str, Any]]) -> Uses:
    """Return what these pods read. One that is over reads nothing more."""
    uses: dict[str, int] = {}
    for pod in pods:
        name = (pod["metadata"].get("labels") or {}).get(LABEL_KEPT)
        if name and pod.get("status", {}).get("phase") not in _OVER:
            uses[name] = max(uses.get(name, 0), _read_size(pod))
    return uses


def _read_size(pod: Mapping[str, Any]) -> int:
    text = (pod["metadata"].get("annotations") or {}).get(ANNOTATION_KEPT_BYTES, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else 0
