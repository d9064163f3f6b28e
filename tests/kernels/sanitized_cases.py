"""Runs the cases with a library that has AddressSanitizer: registers, matrices and caches have ends.

    LD_PRELOAD=libasan.so python -m tests.kernels.sanitized_cases LIBRARY MODE

MODE is whole, short-cache, short-register or short-tail. A short one must be found out: that the memory
before it was watched.
"""

import ctypes
import sys
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from millrace_kernels.native import input_checks, program, selfcheck
from millrace_kernels.native.abi import Library
from millrace_kernels.native.program import NativeProgram
from millrace_kernels.native.recording.record import Recorded, Register
from millrace_kernels.native.weights import packing
from millrace_kernels.native.workspace import Place, compute_row_stride
from millrace_kernels.paged_attention.cache import KvFormat
from millrace_kernels.sampling.native import check_sampler
from tests.kernels.layer_shapes import SHAPES

GAP = 256
"""Forbidden bytes after each register."""
SHORT = 64
"""Forbidden bytes at the end of a register, where that is to be found out. Logits end there with a part of a
vector, which only a product writes."""

SOONEST = "a window within a block"
"""The shape that finds a short cache out; so it is the first."""

PLACES: dict[Register, Place] = {}
"""Of the last program."""


def place_apart(
    operations: Iterable[Recorded], num_tokens: int, num_drawn: int, kept: Collection[Register]
) -> tuple[dict[Register, Place], int]:
    """As `place_registers`, but no memory is used twice and a gap follows each register."""
    PLACES.clear()
    end = 0
    for register in dict.fromkeys([*(one.y for one in operations), *kept]):
        stride = compute_row_stride(register)
        num_bytes = stride * (num_drawn if register.is_drawn else num_tokens)
        PLACES[register] = Place(end, stride, num_bytes)
        end += num_bytes + GAP
    return dict(PLACES), end


def forbid(address: int, num_bytes: int) -> None:
    """Let AddressSanitizer end the process at any use of this memory."""
    function = ctypes.CDLL(None).__asan_poison_memory_region
    function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_size_t), None
    function(address, num_bytes)


class WatchedProgram(NativeProgram):
    """Forbids the gaps."""

    mode = "whole"

    def poison(self) -> None:
        """Fill the registers, and forbid what lies between them."""
        super().poison()
        for register, place in PLACES.items():
            short = SHORT if self._is_short(register) else 0
            end = self._workspace.data_ptr() + place.offset + place.num_bytes
            forbid(end - short, GAP + short)

    def _is_short(self, register: Register) -> bool:
        is_tail = self.mode == "short-tail" and register is self._record.logits
        return is_tail or self.mode == "short-register"


def allocate(_: packing.Arena, num_bytes: int) -> Tensor:
    """Return zeros that share no mapping with another matrix."""
    return torch.zeros(num_bytes, dtype=torch.uint8)


def main(path: Path, mode: str) -> None:
    """Run every case."""
    program.place_registers = place_apart
    selfcheck.NativeProgram = WatchedProgram
    packing.Arena.allocate = allocate
    WatchedProgram.mode = mode
    if mode == "short-cache":
        selfcheck.SLACK = input_checks.SLACK = 1
    library = Library(path)
    cases = SHAPES | {"a single row": selfcheck.SINGLE_ROW}
    for name, case in sorted(cases.items(), key=lambda one: one[0] != SOONEST):
        check_sampler(library, case.vocabulary)
        for (dtype, form), bound in selfcheck.BOUNDS.items():
            assert selfcheck.measure_error(case, library, dtype, form) < bound, (name, dtype, form)
        for dtype, bound in selfcheck.CACHE_BOUNDS.items():
            rounded = replace(case, kv=KvFormat.INT8)
            assert selfcheck.measure_error(rounded, library, dtype) < bound, (name, dtype, "KV")
    print("clean")  # noqa: T201  its only answer


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
