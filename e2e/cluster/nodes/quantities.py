"""Kubernetes quantities ("500m", "16Gi") as numbers. Pure."""

from decimal import Decimal, InvalidOperation

_SUFFIXES = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal("1e3"), "M": Decimal("1e6"),
    "G": Decimal("1e9"), "T": Decimal("1e12"), "P": Decimal("1e15"),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20),
    "Gi": Decimal(2**30), "Ti": Decimal(2**40), "Pi": Decimal(2**50),
}  # fmt: skip


def parse_quantity(text: str | float) -> float:
    """Return the number that a quantity stands for. Raises ValueError, which names the text."""
    written = str(text).strip()
    number = written.rstrip("numkMGTPi")
    try:
        return float(Decimal(number) * _SUFFIXES[written[len(number) :]])
    except (InvalidOperation, KeyError) as error:
        raise ValueError(f"{written!r} is no quantity; write one such as 500m, 2 or 16Gi") from error
