"""The facts about a node's disk, its models, and the pods that use them. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from millrace_runtime import contract
from millrace_runtime.contract import ANNOTATION_KEPT_BYTES, LABEL_KEPT

Uses = Mapping[str, int]
"""The names of the models that pods of this node read, and the size of each; 0 if it is unknown."""
_OVER = ("Succeeded", "Failed")
_MOST_DIGITS = 18


class ModelKey(NamedTuple):
    """A model: its namespace, and its folder there."""

    namespace: str
    folder: str

    @property
    def name(self) -> str:
        """The name in labels of pods and nodes."""
        return contract.name_kept(self.namespace, f"{contract.FOLDER_KEPT}/{self.folder}")


@dataclass(frozen=True)
class Model:
    """A model's folder on the disk, complete or not."""

    key: ModelKey
    num_bytes: int
    """Bytes of the disk that it takes."""
    whole_bytes: int | None
    """The size of the model's files; None if one is missing."""
    used_at: float
    """When a pod of this node used it last, in seconds since 1970."""
    is_closed: bool = False
    """Whether the agent may not read it, or its folders are too deep: its size is unknown, and it stays."""

    @property
    def is_whole(self) -> bool:
        """Whether all its files are there."""
        return self.whole_bytes is not None


class DiskSpace(NamedTuple):
    """The disk's size and use, by models and all else."""

    total_bytes: int
    used_bytes: int


@dataclass(frozen=True)
class Look:
    """The state at one time."""

    space: DiskSpace
    models: tuple[Model, ...]
    uses: Mapping[str, Uses | None]
    """The uses of each namespace that may keep models; None if its pods could not be listed.

    A namespace that is no longer allowed is absent: the agent may not list its pods, and there may be some.
    """

    @property
    def kept_bytes(self) -> int:
        """Bytes that the models take together."""
        return sum(model.num_bytes for model in self.models)

    def list_closed(self, namespace: str) -> list[str]:
        """Return the folders of a namespace that the agent may not read, in order."""
        return sorted(
            model.key.folder for model in self.models if model.is_closed and model.key.namespace == namespace
        )

    def may_be_in_use(self, key: ModelKey) -> bool:
        """Whether a pod of this node reads a model, or that is unknown."""
        uses = self.uses.get(key.namespace)
        return uses is None or key.name in uses

    @property
    def coming_bytes(self) -> int:
        """Bytes that pods of this node still have to fetch.

        A model larger than the disk never comes, so a larger size in a pod's claim does not count.
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
    """Return the models that these pods read. A pod that has ended reads none."""
    uses: dict[str, int] = {}
    for pod in pods:
        name = (pod["metadata"].get("labels") or {}).get(LABEL_KEPT)
        if name and pod.get("status", {}).get("phase") not in _OVER:
            uses[name] = max(uses.get(name, 0), _read_size(pod))
    return uses


def _read_size(pod: Mapping[str, Any]) -> int:
    text = (pod["metadata"].get("annotations") or {}).get(ANNOTATION_KEPT_BYTES, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else 0
