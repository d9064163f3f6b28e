"""Which of a pod's resources are GPUs, by their names. Pure."""

from collections.abc import Mapping
from typing import Final

from millrace_operator.resources.quantities import parse_quantity

WHOLE_GPUS: Final = ("nvidia.com/gpu", "amd.com/gpu")
"""Resources whose unit is a GPU. Workers can hold a model together on several of them."""
PART_OF_GPU: Final = ("nvidia.com/mig-", "nvidia.com/gpu.shared")
"""How the names of slices and shares begin: a process sees one of them, however many a pod has."""


def has_gpu(limits: Mapping[str, str | int]) -> bool:
    """Whether a pod gets a GPU, or a part of one."""
    return any(name in WHOLE_GPUS or name.startswith(PART_OF_GPU) for name in limits)


def count_gpus(limits: Mapping[str, str | int]) -> int:
    """Return how many whole GPUs a pod gets. The API server takes whole numbers of them only."""
    return sum(int(parse_quantity(str(amount))) for name, amount in limits.items() if name in WHOLE_GPUS)
