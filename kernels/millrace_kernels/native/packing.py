"""Matrices as the native products read them, in huge pages. linear/README.md has the layout."""

import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from millrace_kernels.native.errors import RecordError

LANES = 16
CHUNK_BYTES = 64 << 20


class Arena:
    """Memory for weights, in large mappings that ask for huge pages.

    Reading 256 MB in pages of 4 KB was a fifth slower than in huge ones.
    """

    def __init__(self) -> None:
        self._chunk = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def allocate(self, num_bytes: int) -> Tensor:
        """Return zeros, uint8 [num_bytes], at a multiple of 64 bytes; they live as long as the tensor."""
        if self._used + num_bytes > self._chunk.shape[0]:
            self._chunk, self._used = _map(max(num_bytes, CHUNK_BYTES)), 0
        begin = self._used
        self._used += -(-num_bytes // 64) * 64
        return self._chunk[begin : begin + num_bytes]


def _map(num_bytes: int) -> Tensor:
    memory = mmap.mmap(-1, num_bytes)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A weight as strips of 16 outputs."""

    data: Tensor
    """bfloat16 [strips, inputs / 2, 16, 2] or float32 [strips, inputs, 16]; outputs past the last are 0."""
    bias: Tensor | None
    """float32 [outputs]"""
    inputs: int
    outputs: int
    is_gated: bool
    """Strips of the first half of the outputs and of the second take turns."""


class NativePacker:
    """Keeps matrices for the native path."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self.device = dtype, torch.device("cpu")
        self._arena = Arena()

    def pack(self, parts: Iterable[Tensor], outputs: int, inputs: int, bias: Tensor | None) -> PackedMatrix:
        """See Packer. Raises RecordError for a width that no kernel takes."""
        data = self._strips(-(-outputs // LANES), inputs)
        begin = 0
        for part in parts:
            write_rows(data, begin, part)
            begin += part.shape[0]
        return PackedMatrix(data, _widen(bias), inputs, outputs, is_gated=False)

    def pack_gated(
        self, parts: Iterable[Tensor], outputs: int, inputs: int, bias: Tensor | None
    ) -> PackedMatrix:
        """See Packer."""
        data = self._strips(2 * -(-outputs // 2 // LANES), inputs)
        for number, part in enumerate(parts):
            write_rows(data[number::2], 0, part)
        return PackedMatrix(data, _widen(bias), inputs, outputs, is_gated=True)

    def _strips(self, count: int, inputs: int) -> Tensor:
        if inputs % 2:
            raise RecordError(f"a matrix of {inputs} inputs: the native products take even numbers")
        memory = self._arena.allocate(count * inputs * LANES * self.dtype.itemsize).view(self.dtype)
        if self.dtype == torch.bfloat16:
            return memory.view(count, inputs // 2, LANES, 2)
        return memory.view(count, inputs, LANES)


def write_rows(data: Tensor, begin: int, rows: Tensor) -> None:
    """Write rows [count, inputs] as the outputs from `begin` on."""
    pairs = 2 if data.dim() == 4 else 1
    lanes = data.view(*data.shape[:3], pairs).permute(0, 2, 1, 3)
    for strip, lane, first, count in _segments(begin, rows.shape[0]):
        part = rows[first : first + count].reshape(count, -1, pairs)
        if lane == 0 and count % LANES == 0:
            lanes[strip : strip + count // LANES] = part.view(count // LANES, LANES, -1, pairs)
        else:
            lanes[strip, lane : lane + count] = part


def _segments(begin: int, count: int) -> Iterator[tuple[int, int, int, int]]:
    """Cut rows into (strip, lane, first row, rows): whole strips at once, and what is left at the ends."""
    row = 0
    while row < count:
        strip, lane = divmod(begin + row, LANES)
        left = count - row
        size = left // LANES * LANES if lane == 0 and left >= LANES else min(LANES - lane, left)
        yield strip, lane, row, size
        row += size


def _widen(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.float().contiguous()
