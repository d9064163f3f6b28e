"""The progress of a fetch, for people: its receiver, and the format of sizes and times. Pure."""

from collections.abc import Callable
from typing import Protocol

Say = Callable[[str], None]
"""Shows one line to the user."""


class Watch(Protocol):
    """Shows people, or a pod's log, how far a fetch is."""

    def begin(self, total_bytes: int | None, done_bytes: int) -> None:
        """The size of all files, None where the source does not tell it, and what of it is there."""

    def advance(self, num_bytes: int) -> None:
        """So many bytes more are there; fewer if it is negative."""

    def say(self, text: str) -> None:
        """Something that the user should know, in one line."""


def show_bytes(num_bytes: float) -> str:
    """Return a size for people, such as `3.1 GB`."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes:.0f} B"


def show_seconds(seconds: float) -> str:
    """Return a time for people, such as `2m05s`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"
