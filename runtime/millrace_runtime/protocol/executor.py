"""The seam between the scheduler, which decides, and the device, which computes."""

from typing import Protocol

import msgspec

from millrace_runtime.protocol.step import Limits, StepPlan, StepResult


class Sleep(msgspec.Struct, frozen=True, tag="sleep"):
    """Give back the KV cache's memory. Every slot must be empty; no step may follow but after `Wake`."""


class Wake(msgspec.Struct, frozen=True, tag="wake"):
    """Take the KV cache's memory again."""


Command = Sleep | Wake


class Executor(Protocol):
    """Runs step plans in the order they were submitted, so freed blocks are safe in later plans."""

    @property
    def limits(self) -> Limits:
        """What it can hold."""

    @property
    def progress(self) -> int:
        """A number that changes while a step comes forward: with it a long step is told from a hung one."""

    def submit(self, plan: StepPlan) -> None:
        """Take a plan without waiting for it. At most `limits.depth` may be uncollected.

        The masks of the plans before have been provided: a plan may go on from what those draw.
        """

    def provide_masks(self, step: int, masks: memoryview) -> None:
        """Bring the masks of a submitted step, any time before the next `submit` and its own `collect`.

        One after the other for the masked rows, in the plan's order, each of ceil(vocabulary / 32) uint32
        words, little-endian. Bit i of word w allows token 32 * w + i.
        """

    def wait(self, timeout_seconds: float) -> bool:
        """Wait up to a time for the oldest step. Return whether `collect` would return at once.

        The step's masks have been provided: nobody brings them while we wait.
        """

    def collect(self) -> StepResult:
        """Wait for the oldest submitted plan and return its result."""

    def control(self, command: Command) -> None:
        """Obey a command. Only with nothing in flight."""


def mask_bytes(vocabulary_size: int) -> int:
    """Return the size of one row's mask."""
    return -(-vocabulary_size // 32) * 4
