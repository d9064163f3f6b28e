"""What a pod says of a model that its node keeps, for the node's agent and for the scheduler. Pure."""

from dataclasses import dataclass
from typing import Any

from millrace_operator.api.model_types import Model
from millrace_operator.model.cached_model import find_place
from millrace_operator.model.found_model import FoundModel
from millrace_runtime import contract

_MOST_WEIGHT = 100
"""Of a preference, as the API has it. The scheduler weighs it beside its own, which spread pods."""


@dataclass(frozen=True)
class KeptModel:
    """A model that nodes keep."""

    name: str
    num_bytes: int | None
    """None where its source does not say it."""

    @property
    def labels(self) -> dict[str, str]:
        """What the agent knows by that a pod reads the model."""
        return {contract.LABEL_KEPT: self.name}

    @property
    def annotations(self) -> dict[str, str]:
        """For how much the agent makes room."""
        return {} if self.num_bytes is None else {contract.ANNOTATION_KEPT_BYTES: str(self.num_bytes)}

    @property
    def affinity(self) -> dict[str, Any]:
        """That a node which has the model is preferred, and no other one is left out."""
        there = {"key": f"{contract.LABEL_KEPT_ON_NODE}{self.name}", "operator": "Exists"}
        preferred = {"weight": _MOST_WEIGHT, "preference": {"matchExpressions": [there]}}
        return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preferred]}}


def find_kept(namespace: str, model: Model, found: FoundModel | None) -> KeptModel | None:
    """Return the model that the nodes keep for a revision; None where they keep none."""
    place = find_place(model, found)
    if place is None or found is None or not model.cache.is_on_nodes:
        return None
    return KeptModel(contract.name_kept(namespace, place.path), found.num_bytes)
