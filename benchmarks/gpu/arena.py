"""Memory that shows who reads or writes past its end: each tensor lies between two margins.

The margins of numbers are NaN, so what is read there spoils the result. Those of integers are larger than any
block's number. After a kernel has run, the margins must be as they were.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

MARGIN = 1024
"""Numbers on each side: more than one tile of a kernel has in a row."""
CANARY = 0x5A
"""Of each byte of an integer."""


class Arena:
    """Allocates tensors between margins, and fills them with random numbers that a seed decides."""

    def __init__(self, device: torch.device, seed: int = 0) -> None:
        self.device = device
        self._generator = torch.Generator(device).manual_seed(seed)
        self._flats: list[Tensor] = []

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a tensor whose numbers are NaN, or a canary where the type has no NaN."""
        count = torch.Size(shape).numel()
        flat = torch.empty(count + 2 * MARGIN, dtype=dtype, device=self.device)
        flat.fill_(_canary(dtype))
        self._flats.append(flat)
        return flat[MARGIN : MARGIN + count].view(shape)

    def normal(self, shape: tuple[int, ...], dtype: torch.dtype, scale: float = 1.0) -> Tensor:
        """Return normal random numbers. They are the same for each type, but for its rounding."""
        values = torch.randn(shape, device=self.device, generator=self._generator)
        return self.empty(shape, dtype).copy_(values * scale)

    def copy(self, values: Tensor) -> Tensor:
        """Return a copy of a tensor."""
        return self.empty(tuple(values.shape), values.dtype).copy_(values)

    def permutation(self, count: int) -> Tensor:
        """Return the numbers below `count` in random order."""
        return torch.randperm(count, device=self.device, generator=self._generator)

    def count_spoilt(self) -> int:
        """Return how many numbers of the margins have changed."""
        return sum(_count_spoilt(flat) for flat in self._flats)


class Guarded(TorchFunctionMode):
    """While it lasts, what a launcher allocates lies in an arena: unwritten numbers are NaN, not luck."""

    def __init__(self, arena: Arena) -> None:
        super().__init__()
        self._arena = arena

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Allocate like torch, then move what was allocated into the arena."""
        made = func(*args, **(kwargs or {}))
        if func in _EMPTY and made.device.type == self._arena.device.type:
            return self._arena.empty(tuple(made.shape), made.dtype)
        if func in _FILLED and made.device.type == self._arena.device.type:
            return self._arena.copy(made)
        return made


_EMPTY = frozenset({torch.empty, torch.empty_like, Tensor.new_empty})
_FILLED = frozenset({torch.zeros, torch.zeros_like, Tensor.new_zeros, torch.full, torch.full_like})


def _canary(dtype: torch.dtype) -> float:
    return float("nan") if dtype.is_floating_point else int.from_bytes(bytes([CANARY]) * dtype.itemsize)


def _count_spoilt(flat: Tensor) -> int:
    """Return how many numbers in the two margins differ from the canary. Only a NaN is unlike itself."""
    margins = torch.cat((flat[:MARGIN], flat[-MARGIN:]))
    is_spoilt = ~margins.isnan() if flat.dtype.is_floating_point else margins != _canary(flat.dtype)
    return int(is_spoilt.sum())
