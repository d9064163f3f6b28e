"""What the largest step takes of a GPU's memory, found by running one before the KV cache takes the rest."""

from collections.abc import Callable

import torch

from millrace_runtime.execution.errors import CapacityError
from millrace_runtime.execution.exhaustion import is_out_of_memory
from millrace_runtime.execution.local import LocalExecutor
from millrace_runtime.execution.memory import Budget
from millrace_runtime.protocol.executor import Sleep
from millrace_runtime.protocol.sampling import COSTLY
from millrace_runtime.protocol.step import Limits, Row, RowResult, SlotStart, StepPlan
from millrace_runtime.protocol.tokens import pack_tokens

SHARE_OF_THE_REST = 0.95
"""For the KV cache, of what is free beside the largest steps and recordings: later kernels need some too."""
BYTES_TO_RECORD = 256 << 20
BYTES_OF_A_RECORDING = 16 << 20
"""For recorded steps: what they share (cuBLAS's memory, one step's own), and each one's launches. A guess,
until `benchmarks/gpu` has run on a GPU and measured it."""

OpenExecutor = Callable[[int, int], LocalExecutor]
"""Takes the KV cache's blocks and the length of the longest sequence."""


def largest_plan(limits: Limits) -> StepPlan:
    """Return a step with as many drawing rows as there can be, and as many tokens as these can have.

    All sequences have the same blocks, the first ones: what they compute means nothing. Each token counts as
    generated, so that penalties count all of them.
    """
    num_rows = min(limits.num_slots, limits.max_batched_tokens)
    size = min(limits.max_batched_tokens // num_rows, limits.max_model_length - 1)
    blocks = [list(range(-(-size // limits.block_size)))]
    tokens = pack_tokens([0] * size)
    starts = [SlotStart(slot, 0, tokens, 0, blocks, COSTLY, 0) for slot in range(num_rows)]
    return StepPlan(0, [], starts, [], [Row(slot, size, emit=True) for slot in range(num_rows)])


def budget_cache(device: torch.device, limits: Limits, open_executor: OpenExecutor) -> Budget:
    """Return what the KV cache may take. Raises CapacityError without memory for the largest step."""
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    try:
        run_largest(limits, open_executor)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise CapacityError(
            "the GPU has no memory for the largest step beside the weights: lower --max-batched-tokens or "
            "--max-sequences, or share the model among more GPUs with --tensor-parallel"
        ) from error
    step = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    return share_out(torch.cuda.mem_get_info(device)[0], step, _bound_recordings(limits))


def _bound_recordings(limits: Limits) -> int:
    sizes = limits.recordable
    return BYTES_TO_RECORD + BYTES_OF_A_RECORDING * len(sizes) if sizes else 0


def share_out(free: int, step: int, recordings: int = 0) -> Budget:
    """Return what of so many free bytes the KV cache may take beside the largest steps' and recordings'."""
    source = (
        f"{SHARE_OF_THE_REST} of what the GPU has free beside {step} bytes for the largest step and "
        f"{recordings} for recorded ones"
    )
    return Budget(int(max(0, free - step - recordings) * SHARE_OF_THE_REST), source)


def run_largest(limits: Limits, open_executor: OpenExecutor) -> list[RowResult]:
    """Run the largest step as often as there can be steps in flight, and leave nothing behind.

    Return the last one's rows. Each holds its logits until it is collected.
    """
    first = largest_plan(limits)
    slots = [start.slot for start in first.starts]
    executor = open_executor(len(first.starts[0].blocks[0]), limits.max_model_length)
    for number in range(executor.limits.depth):
        executor.submit(StepPlan(number, slots if number else [], first.starts, [], first.rows))
    for _ in range(executor.limits.depth):
        result = executor.collect()
    executor.submit(StepPlan(executor.limits.depth, slots, [], [], []))
    executor.collect()
    executor.control(Sleep())
    return result.rows
