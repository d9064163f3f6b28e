"""Sampling by the native kernel: one call for all rows of a step, on CPUs; and its check by the reference."""

import numpy as np
import torch
from torch import Tensor

from millrace_kernels.native import abi
from millrace_kernels.native.errors import NativeError
from millrace_kernels.sampling.columns import NO_MASK, PARAMETERS, Draws, Sampled, pack_parameters
from millrace_kernels.sampling.reference import sample_reference, weigh
from millrace_kernels.sampling.state import SlotState, pack_bias

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


VOCABULARY, NUM_ROWS = 601, 12


def check_sampler(library: abi.Library, vocabulary: int = VOCABULARY) -> None:
    """Raise NativeError unless a library draws the same tokens as the reference.

    Compares weights, draws of every kind (masked, biased and plain) and faults.
    """
    z = torch.linspace(-20, 0, 2000)
    if not torch.equal(weigh_natively(library, z, 1.25), weigh(z[None], torch.tensor([1.25]))[0]):
        raise NativeError("the native kernels weigh tokens differently than the reference")
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(NUM_ROWS, vocabulary, generator=generator).bfloat16().float() * 3
    known = torch.randint(0, vocabulary, (NUM_ROWS, 20), generator=generator)
    words = (NUM_ROWS + 1, -(-vocabulary // 32))
    masks = torch.randint(-(2**31), 2**31, words, generator=generator, dtype=torch.int32)
    bias = {0: -torch.inf, vocabulary // 3: 4.5, vocabulary - 1: 1.25}
    biases = torch.from_numpy(pack_bias(bias)).repeat(NUM_ROWS, 1)
    state = SlotState(known, biases, masks[:-1])
    logits[5, vocabulary // 2] = torch.nan
    expected = sample_reference(logits, _draws(len(bias)), state, masks[-1:])
    found = NativeSampler(library, vocabulary).sample(logits, _draws(len(bias)), state, masks[-1:])
    if not torch.equal(found.tokens, expected.tokens):
        raise NativeError(f"the native kernels drew {found.tokens.tolist()}, not {expected.tokens.tolist()}")
    if not torch.equal(found.faults, expected.faults):
        faults = f"{found.faults.tolist()}, not {expected.faults.tolist()}"
        raise NativeError(f"the native kernels found faults {faults}")


def _draws(num_biases: int) -> Draws:
    packed = b"".join(
        pack_parameters(
            temperature=row % 4 * 0.6, top_k=row % 3 * 20, top_p=1 - row % 2 / 4, seed=row, frequency=row / 8,
            presence=0.0, repetition=1 + row % 2 / 4, min_p=row % 7 / 20, has_fixed_mask=row % 4 == 2,
        )
        for row in range(NUM_ROWS)
    )  # fmt: skip
    places = [
        (row, 4, 4 + row, 0 if row % 5 == 0 else NO_MASK, row % 2, num_biases if row % 3 else row % 2)
        for row in range(NUM_ROWS)
    ]
    return Draws(np.frombuffer(packed, dtype=PARAMETERS), np.array(places, dtype=np.int64))
