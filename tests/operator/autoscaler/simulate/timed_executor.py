"""An executor whose steps take what a simulated replica's take, on a clock of its own."""

from millrace_operator.autoscaler.simulate.hardware import Hardware
from millrace_runtime.engine.simulated_executor import SimulatedExecutor
from millrace_runtime.protocol.step import Limits, StepPlan, StepResult


class TimedExecutor(SimulatedExecutor):
    """Draws the same token always."""

    def __init__(self, limits: Limits, hardware: Hardware) -> None:
        super().__init__(limits, lambda _: 1)
        self.now = 0.0
        self._hardware = hardware
        self._plan: StepPlan | None = None

    def submit(self, plan: StepPlan) -> None:
        super().submit(plan)
        self._plan = plan

    def collect(self) -> StepResult:
        result = super().collect()
        assert self._plan is not None
        tokens = sum(row.num_tokens for row in self._plan.rows)
        context = sum(self._slots[row.slot].num_computed for row in self._plan.rows)
        self.now += self._hardware.step_seconds(tokens, context)
        return result
