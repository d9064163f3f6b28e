"""Accelerators by name or by a node's labels, with the memory that a process finds there."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from millrace_fit.settings import Device

GIB: Final = 1 << 30
LABEL_MEMORY: Final = "nvidia.com/gpu.memory"
"""MiB, as nvidia-smi shows them: by NVIDIA's GPU feature discovery."""
LABEL_PRODUCT: Final = "nvidia.com/gpu.product"
NO_GPU: Final = "torch finds no GPU that works"
"""The words of a replica without a GPU. The operator recognises them in the last line of its log."""
_RESERVED_BYTES = 512 << 20
_RESERVED_SHARE = 0.002
"""The driver's part of nvidia-smi's total: from 0.3 GiB (T4) to 0.7 GiB (B200), by the figures below."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One device, or the memory of a pod that computes on CPUs."""

    name: str
    memory_bytes: int
    """The free memory that torch finds on an empty device; on CPUs the pod's limit."""
    device: Device = "cuda"
    has_bfloat16: bool = True
    """GPUs below compute capability 8.0 have none."""
    has_fp8: bool = True
    """GPUs below compute capability 8.9 have none."""
    maker: str = "NVIDIA"

    @property
    def is_part(self) -> bool:
        """Whether it is a part of a GPU (MIG). Parts can't exchange sums, so they can't share a model."""
        return bool(re.search(r"(^|MIG-)\dg\.\d+gb$", self.name))


def _gpu(
    name: str, gib: float, *, has_bfloat16: bool = True, has_fp8: bool = True, maker: str = "NVIDIA"
) -> tuple[str, Accelerator]:
    num_bytes = int(gib * GIB)
    return name, Accelerator(name, num_bytes, has_bfloat16=has_bfloat16, has_fp8=has_fp8, maker=maker)


# A device's total capacity that torch reports, from people's out-of-memory messages; the least of several
# figures for one product. Not measured by us. MIG's are from NVIDIA's MIG user guide, the least of several
# generations.
GPUS: Final[Mapping[str, Accelerator]] = dict(
    [
        _gpu("h100-80g", 79.1),
        _gpu("h100-94g", 93.0),
        _gpu("h200-141g", 139.7),
        _gpu("b200-180g", 178.3),
        _gpu("a100-80g", 79.1, has_fp8=False),
        _gpu("a100-40g", 39.3, has_fp8=False),
        _gpu("a10-24g", 22.0, has_fp8=False),
        _gpu("l4-24g", 22.0),
        _gpu("l40s-48g", 44.3),
        _gpu("rtx4090-24g", 23.5),
        _gpu("t4-16g", 14.6, has_bfloat16=False, has_fp8=False),
        _gpu("v100-32g", 31.7, has_bfloat16=False, has_fp8=False),
        _gpu("mi300x-192g", 191.9, maker="AMD"),
        _gpu("1g.5gb", 4.7, has_fp8=False),
        _gpu("1g.10gb", 9.5),
        _gpu("1g.20gb", 19.5),
        _gpu("2g.10gb", 9.7, has_fp8=False),
        _gpu("2g.20gb", 19.5),
        _gpu("3g.20gb", 19.5, has_fp8=False),
        _gpu("3g.40gb", 39.2),
        _gpu("4g.20gb", 19.5, has_fp8=False),
        _gpu("4g.40gb", 39.2),
        _gpu("1g.18gb", 16.0),
        _gpu("2g.35gb", 32.5),
        _gpu("3g.71gb", 69.5),
        _gpu("7g.40gb", 39.3, has_fp8=False),
        _gpu("7g.80gb", 78.7),
        _gpu("7g.141gb", 139.7),
    ]
)
CPU: Final = "cpu"
COMMON: Final = ("l4-24g", "a100-40g", "l40s-48g", "h100-80g", "h200-141g")
"""The overview shows these if nobody names an accelerator."""
_PRODUCTS: Final[Mapping[str, str]] = {
    r"H100.*(NVL|94GB)": "h100-94g",
    r"H100": "h100-80g",
    r"H200": "h200-141g",
    r"B200": "b200-180g",
    r"A100.*80GB": "a100-80g",
    r"A100.*40GB": "a100-40g",
    r"A10G?(-SHARED)?$": "a10-24g",
    r"L4(-SHARED)?$": "l4-24g",
    r"L40S": "l40s-48g",
    r"RTX-4090": "rtx4090-24g",
    r"T4": "t4-16g",
    r"V100.*32GB": "v100-32g",
}
"""By a part of the label's value. The first match counts."""


_BEFORE_BFLOAT16: Final = re.compile(r"\b(V100|T4|P\d+|K80|Quadro|TITAN|GTX|RTX-20\d0)", re.IGNORECASE)
_BEFORE_FP8: Final = re.compile(r"\b(A\d+G?X?|RTX-A\d{4}|RTX-30\d0)\b", re.IGNORECASE)
"""Of the label's value: compute capability 8.0 to 8.8, where the first expression does not match."""


def find_accelerator(name: str) -> Accelerator | None:
    """Return the GPU, or the MIG profile, of a name such as h100-80g; None for an unknown name."""
    lowered = name.lower()
    return GPUS.get(lowered) or next((gpu for gpu in GPUS.values() if lowered == _stem(gpu.name)), None)


def _stem(name: str) -> str:
    """Return the name without its size. h100-80g and h100-94g have the same one; the first counts."""
    return name.rpartition("-")[0]


def read_labels(labels: Mapping[str, str]) -> Accelerator | None:
    """Return the GPU of a node's labels; None if they name no known GPU.

    The label with the memory overrides the product's usual memory: it is right for MIG and for variants.
    """
    product, megabytes = labels.get(LABEL_PRODUCT, ""), labels.get(LABEL_MEMORY, "")
    known = _find_product(product)
    if not (megabytes.isascii() and megabytes.isdecimal() and 0 < len(megabytes) <= 9 and int(megabytes)):
        return known
    total = int(megabytes) << 20
    free = total - _RESERVED_BYTES - int(total * _RESERVED_SHARE)
    name = product or f"a GPU of {megabytes} MiB"
    like = known or _drop_types(product, Accelerator(name, 0))
    return replace(like, name=name, memory_bytes=max(0, free))


def _drop_types(product: str, accelerator: Accelerator) -> Accelerator:
    """Return the accelerator without the number types that products of this name lack."""
    has_bfloat16 = accelerator.has_bfloat16 and not _BEFORE_BFLOAT16.search(product)
    has_fp8 = accelerator.has_fp8 and has_bfloat16 and not _BEFORE_FP8.search(product)
    return replace(accelerator, has_bfloat16=has_bfloat16, has_fp8=has_fp8)


def _find_product(product: str) -> Accelerator | None:
    if profile := re.search(r"MIG-(\dg\.\d+gb)", product):
        part = GPUS.get(profile[1])
        return None if part is None else _drop_types(product, part)
    found = (name for part, name in _PRODUCTS.items() if re.search(rf"\b{part}", product, re.IGNORECASE))
    name = next(found, None)
    return GPUS[name] if name else None
