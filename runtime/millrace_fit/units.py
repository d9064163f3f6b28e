"""Amounts with their units, as people read and write them: bytes, counts and times. Pure."""

import re
from typing import Final

from millrace_fit.errors import SettingError

_UNITS: Final = {
    "": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
    "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40,
}  # fmt: skip


def show_bytes(num_bytes: float) -> str:
    """Return a size of files, such as `3.1 GB`."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes:.0f} B"


def show_gib(num_bytes: float) -> str:
    """Return an amount in GiB, such as `14.96 GiB`, or in MiB if it is less than a tenth of a GiB."""
    gib = num_bytes / 2**30
    if gib < 0.1:
        return f"{num_bytes / 2**20:.1f} MiB"
    return f"{gib:.2f} GiB" if gib < 100 else f"{gib:,.0f} GiB"


def show_count(number: int) -> str:
    """Return a number with separators of thousands: 131,072."""
    return f"{number:,}"


def show_parameters(number: int) -> str:
    """Return a number of parameters: `8.03 billion`, `494 million`."""
    if number >= 10**9:
        return f"{number / 10**9:.3g} billion" if number < 10**12 else f"{number / 10**9:,.0f} billion"
    return f"{number / 10**6:.3g} million"


def show_kib(num_bytes: int) -> str:
    """Return a small amount, such as `128 KiB`."""
    return f"{num_bytes / 1024:,.4g} KiB"


def read_amount(text: str) -> int:
    """Return the bytes of an amount such as 80GiB, 16Gi or 24G. Raises SettingError."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)\s*([kmgt]?i?)b?", text.strip().lower(), re.ASCII)
    num_bytes = int(float(found[1]) * _UNITS[found[2]]) if found and found[2] in _UNITS else 0
    if num_bytes <= 0:
        raise SettingError(f"'{text}' is no amount of memory: write for example 80GiB or 16Gi")
    return num_bytes


def show_seconds(seconds: float) -> str:
    """Return a time, such as `45s`, `2m05s` or `1h02m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"
