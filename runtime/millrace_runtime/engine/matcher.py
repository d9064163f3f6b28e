"""What binds a sequence's draws, as the scheduler sees it, and the masks of a step."""

from typing import NamedTuple, Protocol


class Matcher(Protocol):
    """A sequence's state in its grammar."""

    @property
    def is_stopped(self) -> bool:
        """Whether nothing can follow: the text is whole, or the matcher has failed."""

    @property
    def fault(self) -> str | None:
        """Why the matcher has failed; None if it has not."""

    @property
    def is_slow(self) -> bool:
        """Whether its masks take long. A thread then makes each as soon as the tokens before it are known."""

    @property
    def is_busy(self) -> bool:
        """Whether that thread is making its next mask. Until it has, no draw may be planned."""

    @property
    def is_optimistic(self) -> bool:
        """Whether draws have masks only after one that did not fit."""

    def accepts(self, token: int) -> bool:
        """Whether a token may follow that was drawn without a mask."""

    def consume(self, token: int) -> None:
        """Append a token to the text."""

    def fill(self, mask: memoryview) -> None:
        """Write which tokens may follow, as `Executor.provide_masks` has it. After a fault none may."""


class Masks(NamedTuple):
    """The masks of a submitted step."""

    step: int
    masks: memoryview
