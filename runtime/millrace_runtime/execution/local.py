"""An executor in the engine's own process, over one device."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from millrace_runtime.execution.errors import PlanError
from millrace_runtime.execution.model_runner import Runner, Span
from millrace_runtime.execution.sampler import Draw, Drawn, sample
from millrace_runtime.execution.slots import SlotTable
from millrace_runtime.protocol.step import Limits, RowResult, StepPlan, StepResult, TokenLogprobs

FAULT_NOT_FINITE = "the model's logits are not finite (NaN or infinity)"


@dataclass(frozen=True, slots=True)
class Launched:
    """A step whose work is on the device."""

    plan: StepPlan
    epochs: list[int]
    emits: list[int]
    draws: list[Draw]
    drawn: Drawn | None
    began: float


class LocalExecutor:
    """Runs plans in order. A CPU runs a plan when it is collected, a GPU is given it when submitted."""

    def __init__(self, runner: Runner, slots: SlotTable, limits: Limits, device: torch.device) -> None:
        self.limits = limits
        self._runner, self._slots, self._device = runner, slots, device
        self._in_flight: deque[Callable[[], StepResult]] = deque()

    def submit(self, plan: StepPlan) -> None:
        """Take a plan without waiting for it. Raises PlanError when `depth` plans are uncollected."""
        if len(self._in_flight) >= self.limits.depth:
            raise PlanError(f"{len(self._in_flight)} steps are in flight: collect one before submitting")
        if self._device.type == "cpu":
            self._in_flight.append(partial(self._run, plan))
        else:
            self._in_flight.append(partial(self._finish, self._launch(plan)))

    def collect(self) -> StepResult:
        """Wait for the oldest step and return its result. Raises PlanError."""
        if not self._in_flight:
            raise PlanError("no step is in flight: submit one before collecting")
        return self._in_flight.popleft()()

    def _run(self, plan: StepPlan) -> StepResult:
        return self._finish(self._launch(plan))

    @torch.inference_mode()
    def _launch(self, plan: StepPlan) -> Launched:
        began = time.perf_counter()
        self._slots.apply(plan)
        spans = [Span(row.slot, *self._slots.advance(row)) for row in plan.rows]
        emits = [number for number, row in enumerate(plan.rows) if row.emit]
        draws = [self._draw(spans[number]) for number in emits]
        logits = self._runner.run(spans, emits, self._slots) if spans else None
        native = self._runner.sampler
        drawn = None if logits is None else sample(logits, draws, self._slots.tokens, native=native)
        if drawn is not None:
            self._store(draws, drawn.tokens)
        epochs = [self._slots[span.slot].epoch for span in spans]
        return Launched(plan, epochs, emits, draws, drawn, began)

    def _draw(self, span: Span) -> Draw:
        slot = self._slots[span.slot]
        return Draw(slot.sampling, span.end, span.slot, slot.num_prompt)

    def _store(self, draws: list[Draw], tokens: Tensor) -> None:
        """Make the drawn tokens known to the next step, without their leaving the device."""
        self._slots.tokens[[d.slot for d in draws], [d.position for d in draws]] = tokens

    @torch.inference_mode()
    def _finish(self, launched: Launched) -> StepResult:
        outcomes = _read_outcomes(launched)
        rows = []
        for number, row in enumerate(launched.plan.rows):
            token, logprobs, fault = outcomes.get(number, (None, None, None))
            rows.append(RowResult(row.slot, launched.epochs[number], token, logprobs, fault))
        return StepResult(launched.plan.step, rows, time.perf_counter() - launched.began)


Outcome = tuple[int | None, TokenLogprobs | None, str | None]


def _read_outcomes(launched: Launched) -> dict[int, Outcome]:
    """Fetch the draws, by row number; on a GPU this waits for the step."""
    drawn = launched.drawn
    if drawn is None:
        return {}
    tokens, is_finite = drawn.tokens.tolist(), drawn.is_finite.tolist()
    outcomes: dict[int, Outcome] = {}
    for place, (number, draw) in enumerate(zip(launched.emits, launched.draws, strict=True)):
        if not is_finite[place]:
            outcomes[number] = (None, None, FAULT_NOT_FINITE)
            continue
        outcomes[number] = (tokens[place], _read_logprobs(drawn, place, tokens[place], draw), None)
    return outcomes


def _read_logprobs(drawn: Drawn, place: int, token: int, draw: Draw) -> TokenLogprobs | None:
    count = draw.sampling.num_logprobs
    if count is None or drawn.logprobs is None:
        return None
    row = drawn.logprobs[place]
    best = row.topk(min(count, row.shape[0]))
    return TokenLogprobs(row[token].item(), best.indices.tolist(), best.values.tolist())
