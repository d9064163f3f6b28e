"""Sampling by the native kernel: one call for all rows of a step, on CPUs."""

import numpy as np
import torch
from torch import Tensor

from millrace_kernels.native import abi
from millrace_kernels.sampling.columns import Draws, Sampled
from millrace_kernels.sampling.state import SlotState

WORTH_WAKING = 2_000_000
"""With fewer tokens to read, other threads would wake too late: these take one thread about 160 µs."""
TOKENS_PER_DRAWN = 10
"""A token that may be drawn costs as much as this many compared tokens."""


class NativeSampler:
    """Draws the same tokens as `sample_reference`. One caller at a time."""

    def __init__(self, library: abi.Library, vocabulary: int, pool: abi.Pool | None = None) -> None:
        """`pool` must outlive this object; without a pool the caller's thread draws."""
        self._library, self._vocabulary, self._pool = library, vocabulary, pool
        each = library.sample_bytes(vocabulary)
        self._scratch = torch.zeros(each * (1 if pool is None else pool.num_threads), dtype=torch.uint8)
        self._asked = abi.Sampling(scratch=self._scratch.data_ptr(), scratch_bytes=each)
        self._asked.vocabulary = vocabulary

    def sample(self, logits: Tensor, draws: Draws, state: SlotState, masks: Tensor | None = None) -> Sampled:
        """Draw as `sample_reference` does, on CPU tensors whose rows are each contiguous."""
        num_rows = len(draws.parameters)
        assert logits.shape[0] == num_rows, f"{logits.shape[0]} rows of logits for {num_rows} draws"
        draws.check(state, masks)
        numbers = torch.empty((2, num_rows), dtype=torch.int64)
        faults = torch.empty(num_rows, dtype=torch.uint8)
        asked = self._asked
        asked.logits, asked.logits_stride = _rows(logits, torch.float32, self._vocabulary)
        asked.parameters, asked.places = _address(draws.parameters), _address(draws.places)
        num_words = -(-self._vocabulary // 32)
        asked.tokens, asked.tokens_stride = _rows(state.tokens, torch.int64)
        asked.biases, asked.biases_stride = _rows(state.biases, torch.int64)
        asked.fixed_masks, asked.fixed_masks_stride = _rows(state.masks, torch.int32, num_words)
        asked.masks, asked.masks_stride = None, 0
        if masks is not None:
            asked.masks, asked.masks_stride = _rows(masks, torch.int32, num_words)
        asked.drawn, asked.faults = numbers.data_ptr(), faults.data_ptr()
        asked.num_rows, asked.next_row = num_rows, 0
        self._library.sample(self._pool if self._is_long(draws) else None, asked)
        numbers[1] = faults
        return Sampled(numbers)

    def _is_long(self, draws: Draws) -> bool:
        num_rows = len(draws.parameters)
        num_drawn = np.count_nonzero(draws.parameters["inverse_temperature"])
        work = (num_rows + (TOKENS_PER_DRAWN - 1) * int(num_drawn)) * self._vocabulary
        return num_rows > 1 and work >= WORTH_WAKING


def weigh_natively(library: abi.Library, z: Tensor, inverse_temperature: float) -> Tensor:
    """Return the int64 weights of one row, as the reference's `weigh`."""
    weights = torch.empty(len(z) + 16, dtype=torch.int32)
    library.weigh(z.data_ptr(), len(z), z.max().item(), inverse_temperature, weights.data_ptr())
    return weights[: len(z)].long()


def _rows(tensor: Tensor, dtype: torch.dtype, width: int | None = None) -> tuple[int, int]:
    """Return the address of rows that are each contiguous, and their stride."""
    assert tensor.dim() == 2, f"{tuple(tensor.shape)} is not rows"
    assert width in {None, tensor.shape[1]}, f"rows of {tensor.shape[1]}, not of {width}"
    assert tensor.dtype == dtype, f"{tensor.dtype} is not {dtype}"
    assert tensor.stride(1) == 1, "a row must be contiguous"
    assert tensor.device.type == "cpu", f"{tensor.device} is not the CPU"
    return tensor.data_ptr(), tensor.stride(0)


def _address(columns: np.ndarray) -> int:
    assert columns.flags.c_contiguous, "columns must be contiguous"
    address: int = columns.ctypes.data
    return address
