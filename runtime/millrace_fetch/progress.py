"""The progress of a fetch, for people: its receiver, and the format of times. Pure."""

from collections.abc import Callable
from typing import Protocol

Say = Callable[[str], None]
"""Shows one line to the user."""


class Watch(Protocol):
    """Receives the progress of a fetch."""

    def begin(self, total_bytes: int | None, done_bytes: int) -> None:
        """Start, with the size of all files (None if unknown) and the number of bytes on the disk."""

    def advance(self, num_bytes: int) -> None:
        """Add bytes that are on the disk now; a negative number removes some."""

    def say(self, text: str) -> None:
        """Show one line to the user."""


def show_seconds(seconds: float) -> str:
    """Return a time for people, such as `2m05s`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"
