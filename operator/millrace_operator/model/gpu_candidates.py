"""Which GPUs a service's pod could get, by the labels of the nodes that are there. Pure.

Only nodeSelector and the amounts asked for leave a node out. Taints and affinities would leave out more, and
pods that are there may have taken all. A model is refused that fits on no candidate, so too many are no harm.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from millrace_fit.accelerators import LABEL_MEMORY, LABEL_PRODUCT, Accelerator, read_labels
from millrace_operator.api.accelerators import list_gpus
from millrace_operator.api.conditions import LOWER_OR_ADD, NO_NODE_HAS
from millrace_operator.api.types import Spec
from millrace_operator.kube.node import GPUS, GpuNode


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


def explain_shortage(spec: Spec, nodes: Iterable[GpuNode]) -> str | None:
    """Return that no node has as many GPUs as a pod asks for, free or not; None where one has, or who knows.

    Only what all nodes with GPUs tell counts, and only where there are such nodes: an autoscaler may add the
    first one, of any size. It may add a larger one, too, so this refuses nothing.
    """
    offers = [node.offers for node in nodes]
    if not offers or not all(offers):
        return None
    for name, amount in list_gpus(spec.resources.limits).items():
        most = max(_read_amount(one, name) for one in offers)
        if name.startswith(GPUS) and most < amount:
            largest = f"the largest has {most}" if most else "none has any"
            return f"{NO_NODE_HAS} {amount} {name}; {largest}: {LOWER_OR_ADD}"
    return None


def read_candidate(spec: Spec, node: GpuNode | None) -> Candidate | None:
    """Return the GPUs of a node; None where the service's pod could not run there."""
    if node is None or not spec.pod.node_selector.items() <= node.labels.items():
        return None
    asked = list_gpus(spec.resources.limits)
    is_short = any(_read_amount(node.offers, name) < amount for name, amount in asked.items())
    # One that offers nothing now is counted: a device plugin that starts anew must not lift a refusal.
    if not asked or (node.offers and is_short):
        return None
    return Candidate(node.labels.get(LABEL_PRODUCT, ""), node.labels.get(LABEL_MEMORY, ""))


def _read_amount(offers: Mapping[str, str], resource: str) -> int:
    """Return how many of a resource a node offers. They are whole numbers, of GPUs and of parts of them."""
    amount = offers.get(resource, "0")
    return int(amount) if amount.isascii() and amount.isdecimal() else 0
