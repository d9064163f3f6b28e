"""The receivers of a fetch's progress. Pure."""

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
