"""The seam between the scheduler, which decides, and the device, which computes."""

from typing import Protocol

from millrace_runtime.protocol.step import Limits, StepPlan, StepResult


class Executor(Protocol):
    """Runs step plans in the order they were submitted, so freed blocks are safe in later plans."""

    limits: Limits

    def submit(self, plan: StepPlan) -> None:
        """Take a plan without waiting for it. At most `limits.depth` may be uncollected."""

    def collect(self) -> StepResult:
        """Wait for the oldest submitted plan and return its result."""
