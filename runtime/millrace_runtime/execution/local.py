"""An executor in the engine's own process, over one device."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from millrace_kernels.compilations import Compilations
from millrace_kernels.paged_attention.cache import KvCache
from millrace_kernels.transfer import upload
from millrace_runtime.execution.applied_plan import AppliedPlan, add_scores, read_rows
from millrace_runtime.execution.device_queue import Stopwatch, open_queue
from millrace_runtime.execution.errors import PlanError
from millrace_runtime.execution.model_runner import Computed, Runner
from millrace_runtime.execution.sampler import Drawn, measure_logprobs
from millrace_runtime.execution.scoring import Scores
from millrace_runtime.execution.slots import SlotTable
from millrace_runtime.execution.speculation.speculation import Speculation
from millrace_runtime.protocol.executor import Command, Forget, Record, Sleep, Wake
from millrace_runtime.protocol.sampling import count_mask_bytes
from millrace_runtime.protocol.step import Limits, Placement, StepPlan, StepResult, StepSize


@dataclass(frozen=True, slots=True)
class Forwarded:
    """A step after the model, before its draw."""

    applied: AppliedPlan
    computed: Computed
    stopwatch: Stopwatch


@dataclass(frozen=True, slots=True)
class Launched:
    """A step whose work is launched on the device."""

    applied: AppliedPlan
    drawn: Drawn | None
    """On the host, once the stopwatch has stopped."""
    scores: list[Scores]
    """Likewise."""
    stopwatch: Stopwatch


@dataclass(slots=True)
class _SubmittedStep:
    """A submitted step. Its draw is launched with its masks, or at once if it needs none."""

    plan: StepPlan
    num_masks: int
    forwarded: Future[Forwarded]
    launched: Future[Launched] | None = None


class LocalExecutor:
    """Runs plans in order: first the model, then the draw, which waits for the masks of masked rows.

    One thread may submit and provide masks while another thread waits and collects.
    """

    def __init__(
        self,
        runner: Runner,
        slots: SlotTable,
        limits: Limits,
        device: torch.device,
        allocate_caches: Callable[[], list[KvCache]],
        *,
        placement: Placement,
        speculation: Speculation | None = None,
    ) -> None:
        """The runner gets its KV caches here, and again at every `Wake`.

        `speculation` guesses; without it nothing is offered.
        """
        self.limits, self.placement = limits, placement
        self._runner, self._slots, self._device = runner, slots, device
        self._speculation = speculation
        self._compilations = Compilations() if device.type == "cuda" else None
        self._num_counted = 0
        self._allocate_caches = allocate_caches
        self._is_asleep = True
        self._num_draws = 0
        self._queue = open_queue(device)
        self._in_flight: deque[_SubmittedStep] = deque()
        self._newest: _SubmittedStep | None = None
        self.control(Wake())

    @property
    def progress(self) -> int:
        """The layers or operations that were computed, and the draws."""
        return self._runner.progress + self._num_draws

    def enter_thread(self) -> None:
        """Make the calling thread use this executor's device. By default each thread uses the first one."""
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)

    def submit(self, plan: StepPlan) -> None:
        """Submit a plan without waiting: on a GPU it queues after the step before.

        Raises PlanError if `depth` plans are uncollected, one of them has no masks yet, or the executor
        sleeps.
        """
        if len(self._in_flight) >= self.limits.depth:
            raise PlanError(f"{len(self._in_flight)} steps are in flight: collect one before submitting")
        if self._is_asleep:
            raise PlanError("the executor sleeps: wake it before submitting")
        if self._newest is not None:
            _require_masks(self._newest)
        if self._speculation is not None:
            self._speculation.follow(plan)
        num_masks = sum(1 + len(row.draft) for row in plan.rows if row.is_masked)
        submitted = _SubmittedStep(plan, num_masks, self._queue.submit(self._forward, plan))
        if not num_masks:
            submitted.launched = self._queue.submit(self._draw, submitted.forwarded, None)
        self._newest = submitted
        self._in_flight.append(submitted)

    def provide_masks(self, step: int, masks: memoryview) -> None:
        """Provide a step's masks, so that it can draw. Raises PlanError if it does not need them."""
        in_flight = tuple(self._in_flight)
        submitted = next((submitted for submitted in in_flight if submitted.plan.step == step), None)
        if submitted is None or submitted.launched is not None:
            raise PlanError(f"step {step} waits for no masks")
        wanted = submitted.num_masks * count_mask_bytes(self.limits.vocabulary_size)
        if masks.nbytes != wanted:
            raise PlanError(f"step {step} wants {wanted} bytes of masks, not {masks.nbytes}")
        words = np.frombuffer(bytearray(masks), dtype=np.int32).reshape(submitted.num_masks, -1)
        submitted.launched = self._queue.submit(self._draw, submitted.forwarded, words)

    def wait(self, timeout_seconds: float) -> bool:
        """Wait up to a time for the oldest step, and return whether it has run. Raises PlanError.

        On a GPU a step has run once it is launched: `collect` waits for the rest.
        """
        if not self._in_flight:
            return True
        return not wait_for([_require_masks(self._in_flight[0])], timeout_seconds).not_done

    def collect(self) -> StepResult:
        """Wait for the oldest step and return its result. Raises PlanError, and the step's own error.

        A step without its masks raises PlanError: nobody could provide them during the wait.
        """
        if not self._in_flight:
            raise PlanError("no step is in flight: submit one before collecting")
        launched = _require_masks(self._in_flight[0])
        self._in_flight.popleft()
        result = self._finish(launched.result())
        return result if self._speculation is None else self._speculation.offer(result)

    def control(self, command: Command) -> None:
        """Sleep, wake, record or forget. Raises PlanError with steps in flight, and for a record asleep.

        To sleep or wake, the device must hold no sequences.
        """
        if self._in_flight:
            raise PlanError(f"{len(self._in_flight)} steps are in flight: collect them before a command")
        if isinstance(command, Record):
            self._record(command.size)
            return
        if isinstance(command, Forget):
            self._runner.forget(command.size)
            return
        if not self._slots.is_empty:
            raise PlanError("sequences are on the device: release their slots before a command")
        if isinstance(command, Sleep):
            self._runner.set_caches([])
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
        elif self._is_asleep:
            with torch.inference_mode():
                self._runner.set_caches(self._allocate_caches())
        self._is_asleep = isinstance(command, Sleep)

    @property
    def recorded(self) -> frozenset[StepSize]:
        """The recorded sizes."""
        return self._runner.recorded

    @torch.inference_mode()
    def _record(self, size: StepSize) -> None:
        if self._is_asleep:
            raise PlanError("the executor sleeps: wake it before recording")
        if size not in self.limits.recordable:
            raise PlanError(f"{size} can't be recorded: {self.limits.recordable} can")
        self._runner.record(size, self._slots)

    def check(self) -> None:
        """Do nothing: without other processes only steps can fail."""

    @torch.inference_mode()
    def _forward(self, plan: StepPlan) -> Forwarded:
        stopwatch = Stopwatch(self._device)
        stopwatch.mark()
        applied, computed = self._slots.apply(plan), Computed(None)
        if plan.rows:
            computed = self._runner.run(
                applied.spans,
                applied.emits,
                self._slots,
                applied.early_draws,
                scored=applied.scored,
                places=applied.places,
            )
        if applied.is_masked:
            stopwatch.mark()  # the draw waits for masks
        return Forwarded(applied, computed, stopwatch)

    @torch.inference_mode()
    def _draw(self, forwarded: Future[Forwarded], words: NDArray[np.int32] | None) -> Launched:
        done = forwarded.result()  # the queue has already run it
        applied, stopwatch = done.applied, done.stopwatch
        if applied.is_masked:
            stopwatch.mark()
        drawn = self._draw_tokens(applied, done.computed, words)
        on_host = None if drawn is None else drawn.download()
        scores = [one.download() for one in done.computed.scores]
        stopwatch.mark()
        return Launched(applied, on_host, scores, stopwatch)

    def _draw_tokens(
        self, applied: AppliedPlan, computed: Computed, words: NDArray[np.int32] | None
    ) -> Drawn | None:
        """Draw the tokens that the graph has not drawn. Return None for a step that draws nothing."""
        logits, sampled, _ = computed
        if logits is None:
            return None
        self._num_draws += 1
        sampler = self._runner.sampler
        if sampled is None:
            masks = None if words is None else upload(words, self._device)
            sampled = sampler.draw(logits, applied.draws, self._slots.state, masks)
        return Drawn(sampled, measure_logprobs(logits, applied.num_logprobs, sampled.tokens, sampler))

    @torch.inference_mode()
    def _finish(self, launched: Launched) -> StepResult:
        seconds = launched.stopwatch.seconds()  # waits for this step, and for no later one
        rows = read_rows(launched.applied, launched.drawn)
        if launched.applied.drafts:
            self._slots.settle(rows)
        add_scores(rows, launched.scores)
        return StepResult(launched.applied.step, rows, seconds, self._count_compiled())

    def _count_compiled(self) -> int:
        """Return the number of kernels that were compiled since the last call."""
        before, self._num_counted = self._num_counted, self._compilations.count if self._compilations else 0
        return self._num_counted - before


def _require_masks(submitted: _SubmittedStep) -> Future[Launched]:
    """Return the step's draw. Raises PlanError if it is not launched."""
    if submitted.launched is None:
        raise PlanError(
            f"step {submitted.plan.step} has no masks: provide them for its {submitted.num_masks} draws"
        )
    return submitted.launched
