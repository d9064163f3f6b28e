"""What takes the body of a replica's answer."""

from typing import Protocol


class Sink(Protocol):
    """Takes the body of an answer."""

    def take(self, pieces: list[bytes]) -> None:
        """Take pieces of the body, at least one, as they came in one read."""

    def end(self, *, is_whole: bool) -> None:
        """Note the end; not whole if the replica broke off."""

    def pause_client(self) -> None:
        """Take no more bytes from the client for now: the replica is slow."""

    def resume_client(self) -> None:
        """Take bytes from the client again."""
