"""Who is told how far a fetch is."""

from typing import Protocol


class Watch(Protocol):
    """Shows people, or a pod's log, how far a fetch is."""

    def begin(self, total_bytes: int | None, done_bytes: int) -> None:
        """The size of all files, None where the source does not tell it, and what of it is there."""

    def advance(self, num_bytes: int) -> None:
        """So many bytes more are there; fewer if it is negative."""

    def say(self, text: str) -> None:
        """Something that the user should know, in one line."""
