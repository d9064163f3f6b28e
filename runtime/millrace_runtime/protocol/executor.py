"""The interface between the scheduler, which decides, and the executor, which computes."""

from typing import Protocol

import msgspec

from millrace_runtime.protocol.step import Limits, Placement, StepPlan, StepResult, StepSize


class Sleep(msgspec.Struct, frozen=True, tag="sleep"):
    """Free the KV cache's memory. Every slot must be empty, and no step may follow before `Wake`.

    The scheduler must forget its prefixes first.
    """


class Wake(msgspec.Struct, frozen=True, tag="wake"):
    """Allocate the KV cache's memory again."""


class Record(msgspec.Struct, frozen=True, tag="record"):
    """Make the steps of a size faster: one of `limits.recordable`. Sequences may run."""

    size: StepSize


class Forget(msgspec.Struct, frozen=True, tag="forget"):
    """Remove the recording of a size."""

    size: StepSize


Command = Sleep | Wake | Record | Forget


class Executor(Protocol):
    """Runs step plans in the order of their submission, so freed blocks are safe in later plans."""

    @property
    def limits(self) -> Limits:
        """The executor's limits."""

    @property
    def placement(self) -> Placement:
        """Where the model is."""

    @property
    def progress(self) -> int:
        """A number that changes while a step makes progress, and stays while it hangs."""

    def submit(self, plan: StepPlan) -> None:
        """Submit a plan without waiting for it. At most `limits.depth` plans may be uncollected.

        The masks of earlier plans must be there: this plan may continue from their draws.
        """

    def provide_masks(self, step: int, masks: memoryview) -> None:
        """Provide the masks of a submitted step, before the next `submit` and before its `collect`.

        `masks` has those of the masked rows in the plan's order, for each row one, and then one behind each
        token of its draft. A mask has ceil(vocabulary / 32) uint32 words, little-endian. Bit i of word w
        allows token 32 * w + i. An empty mask behind a guess ends the row's draws before it.
        """

    def wait(self, timeout_seconds: float) -> bool:
        """Wait up to a time for the oldest step. Return whether `collect` would return at once.

        The step's masks must be there: nobody provides them during the wait.
        """

    def collect(self) -> StepResult:
        """Wait for the oldest submitted plan and return its result."""

    def control(self, command: Command) -> None:
        """Run a command. No step may be in flight."""

    def check(self) -> None:
        """Raise the error of a failure outside steps, such as a worker that ended while nothing ran."""
