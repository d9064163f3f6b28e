"""The grammar that binds a sequence's draws, as the scheduler sees it, and the masks of a step."""

from collections.abc import Sequence
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

    def force(self, most: int) -> list[int]:
        """Append up to `most` of the tokens that are forced now, and return them.

        Behind the last token no others may follow, and none of them is a stop token. Where they are drawn
        instead, the masks allow the same ones.
        """

    def prepare(self) -> None:
        """Begin with the next mask, if masks take long: the tokens of a row are consumed."""

    def fill(self, mask: memoryview) -> None:
        """Write which tokens may follow, as `Executor.provide_masks` has it. After a fault none may."""

    def look_ahead(self, guesses: Sequence[int], masks: Sequence[memoryview]) -> None:
        """Write which tokens may follow behind each guess, into `masks` from the second on.

        The first is that of `fill`. The others come empty, and stay so behind a guess that does not fit, or
        that ends the text. No guess becomes a part of the text, and none is a fault.
        """


def allows(mask: memoryview, token: int) -> bool:
    """Whether a mask allows a token."""
    return bool(mask[token >> 3] >> (token & 7) & 1)


class Masks(NamedTuple):
    """The masks of a submitted step."""

    step: int
    masks: memoryview
