"""Amounts: quantities of Kubernetes such as `16Gi`, the GPUs among them, and the figures in status. Pure.

A pod gets every resource as it is written. Only the GPUs that the runtime can compute on have a meaning here.

Figures in status are decimal text of three digits, because Kubernetes' conventions advise against floats in
an API. Whole milli-units, the usual alternative, can't hold 20 nanoseconds a token.
"""

import math
import re
from collections.abc import Mapping
from decimal import ROUND_UP, Decimal, DecimalException
from typing import Final

_SUFFIXES = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal(10) ** 3, "M": Decimal(10) ** 6, "G": Decimal(10) ** 9, "T": Decimal(10) ** 12,
    "P": Decimal(10) ** 15, "E": Decimal(10) ** 18,
    "Ki": Decimal(2) ** 10, "Mi": Decimal(2) ** 20, "Gi": Decimal(2) ** 30, "Ti": Decimal(2) ** 40,
    "Pi": Decimal(2) ** 50, "Ei": Decimal(2) ** 60,
}  # fmt: skip
_QUANTITY = re.compile(
    r"(?P<number>[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+))"
    r"((?P<exponent>[eE][+-]?[0-9]+)|(?P<suffix>[numkMGTPE]|[KMGTPE]i)?)"
)


_LARGEST = Decimal(2**63 - 1)
"""A larger amount counts as this one: to write `1e999999` as an integer takes 25 s of the leader's loop."""
_FINEST = Decimal("1e-9")
"""Kubernetes rounds an amount up to a multiple of this."""


def parse_quantity(text: str) -> Decimal:
    """Return the amount as Kubernetes keeps it, at most 2**63 - 1. Raises ValueError for another text."""
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no quantity")
    try:
        amount = Decimal(found["number"] + (found["exponent"] or "")) * _SUFFIXES[found["suffix"] or ""]
    except DecimalException:  # an exponent of more digits than it can have
        sign = Decimal(found["number"]).compare(Decimal(0))
        amount = Decimal(0) if "-" in found["exponent"] else sign * _LARGEST
    return max(-_LARGEST, min(amount, _LARGEST)).quantize(_FINEST, ROUND_UP)


NUMBER_PATTERN = r"^[0-9]+([.][0-9]+)?(e-[0-9]+)?$"
LARGE = 1000.0


def render_number(value: float | None) -> str | None:
    """Return the figure as text; None for one that is unknown, not finite or below zero."""
    if value is None or not math.isfinite(value) or value < 0:
        return None
    return f"{value:.0f}" if value >= LARGE else f"{value:.3g}".replace("1e+03", "1000")


def parse_number(text: str | None) -> float | None:
    """Return a figure as a number; None without one, or for another form."""
    try:
        number = math.nan if text is None else float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


WHOLE_GPUS: Final = ("nvidia.com/gpu", "amd.com/gpu")
"""Resources whose unit is a GPU. Workers can share a model over several of them."""
PART_OF_GPU: Final = (
    "nvidia.com/mig-",
    "nvidia.com/gpu.shared",
    *(f"amd.com/{style}_nps" for style in ("spx", "dpx", "tpx", "qpx", "cpx")),
)
"""How the names of slices and shares begin. A process sees one of NVIDIA's, even if its pod has several."""


def has_gpu(limits: Mapping[str, str | int]) -> bool:
    """Whether a pod gets a GPU, or a part of one."""
    return any(_is_gpu(name) and _read_amount(amount) > 0 for name, amount in limits.items())


def list_gpus(limits: Mapping[str, str | int]) -> dict[str, int]:
    """Return how many GPUs or parts of GPUs a pod gets, by the name of the resource."""
    amounts = {name: int(_read_amount(amount)) for name, amount in limits.items() if _is_gpu(name)}
    return {name: amount for name, amount in amounts.items() if amount > 0}


def count_gpus(limits: Mapping[str, str | int]) -> int:
    """Return how many whole GPUs a pod gets. The API server takes only whole numbers of them."""
    return sum(int(_read_amount(amount)) for name, amount in limits.items() if name in WHOLE_GPUS)


def _is_gpu(name: str) -> bool:
    return name in WHOLE_GPUS or name.startswith(PART_OF_GPU)


def _read_amount(amount: str | int) -> Decimal:
    """Return the amount; 1 for an unreadable one, because of which the API server refuses the Deployment."""
    try:
        return parse_quantity(str(amount))
    except ValueError:
        return Decimal(1)
