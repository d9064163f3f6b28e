"""Which GPUs a service's pod could get, by the labels of the nodes that are there. Pure.

Only nodeSelector and the amounts asked for leave a node out. Taints and affinities would leave out more, and
pods that are there may have taken all. A model is refused that fits on no candidate, so too many are no harm.
"""

from collections.abc import Iterable
from typing import NamedTuple

from millrace_fit.accelerators import LABEL_MEMORY, LABEL_PRODUCT, Accelerator, read_labels
from millrace_operator.api.accelerators import list_gpus
from millrace_operator.api.types import Spec
from millrace_operator.kube.node import GpuNode


class Candidate(NamedTuple):
    """The GPUs of a node, as its labels tell of them; both are empty where they tell nothing."""

    product: str
    memory: str

    @property
    def accelerator(self) -> Accelerator | None:
        """One of them; None where it is not known."""
        return read_labels({LABEL_PRODUCT: self.product, LABEL_MEMORY: self.memory})


def find_candidates(spec: Spec, nodes: Iterable[GpuNode]) -> frozenset[Candidate]:
    """Return the GPUs of all nodes on which the service's pod could run."""
    found = (read_candidate(spec, node) for node in nodes)
    return frozenset(one for one in found if one is not None)


def read_candidate(spec: Spec, node: GpuNode | None) -> Candidate | None:
    """Return the GPUs of a node; None where the service's pod could not run there."""
    if node is None or not spec.pod.node_selector.items() <= node.labels.items():
        return None
    asked = list_gpus(spec.resources.limits)
    is_short = any(_read_amount(node, name) < amount for name, amount in asked.items())
    # One that offers nothing now is counted: a device plugin that starts anew must not lift a refusal.
    if not asked or (node.offers and is_short):
        return None
    return Candidate(node.labels.get(LABEL_PRODUCT, ""), node.labels.get(LABEL_MEMORY, ""))


def _read_amount(node: GpuNode, resource: str) -> int:
    """Return how many of a resource a node offers. They are whole numbers, of GPUs and of parts of them."""
    amount = node.offers.get(resource, "0")
    return int(amount) if amount.isascii() and amount.isdecimal() else 0
