"""Which of a pod's resources are GPUs, by their names. Pure.

All resources reach the pod as they are written, whatever their names. Only those that the runtime can compute
on are known here: GPUs of other vendors and other accelerators are names like any other.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Final

from millrace_operator.api.quantities import parse_quantity

WHOLE_GPUS: Final = ("nvidia.com/gpu", "amd.com/gpu")
"""Resources whose unit is a GPU. Workers can hold a model together on several of them."""
PART_OF_GPU: Final = (
    "nvidia.com/mig-",
    "nvidia.com/gpu.shared",
    *(f"amd.com/{style}_nps" for style in ("spx", "dpx", "tpx", "qpx", "cpx")),
)
"""How the names of slices and shares begin. A process sees one of NVIDIA's, however many a pod has."""


def has_gpu(limits: Mapping[str, str | int]) -> bool:
    """Whether a pod gets a GPU, or a part of one."""
    return any(_is_gpu(name) and _read(amount) > 0 for name, amount in limits.items())


def list_gpus(limits: Mapping[str, str | int]) -> dict[str, int]:
    """Return how many GPUs, or parts of one, a pod gets, by the name of the resource."""
    amounts = {name: int(_read(amount)) for name, amount in limits.items() if _is_gpu(name)}
    return {name: amount for name, amount in amounts.items() if amount > 0}


def count_gpus(limits: Mapping[str, str | int]) -> int:
    """Return how many whole GPUs a pod gets. The API server takes whole numbers of them only."""
    return sum(int(_read(amount)) for name, amount in limits.items() if name in WHOLE_GPUS)


def _is_gpu(name: str) -> bool:
    return name in WHOLE_GPUS or name.startswith(PART_OF_GPU)


def _read(amount: str | int) -> Decimal:
    """Return the amount. What is none counts as 1: the API server refuses that Deployment and says why."""
    try:
        return parse_quantity(str(amount))
    except ValueError:
        return Decimal(1)
