"""The native libraries of the tests: which of them always run, and each compiled by one process alone."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from millrace_kernels.native.abi import Library
from millrace_kernels.native.build import find_library
from millrace_kernels.native.cache import find_default_cache, open_cache
from millrace_kernels.native.instruction_sets import InstructionSet, list_usable_sets, read_cpu_flags
from millrace_kernels.native.selection import load_library

PORTABLE = InstructionSet.PORTABLE
FASTEST = list_usable_sets(read_cpu_flags())[0]
READS_KERNELS = pytest.mark.reads("kernels", "tests/kernels")
"""For what costs seconds and depends on nothing else: it runs when one of these has changed."""
# AVX-512 with BF16 compiles each line that VNNI does.
INSTRUCTION_SETS = [
    one
    if one in (FASTEST, PORTABLE)
    else pytest.param(one, marks=pytest.mark.long if one is InstructionSet.AVX512_VNNI else READS_KERNELS)
    for one in InstructionSet
]


@contextmanager
def _lock() -> Iterator[None]:
    with (open_cache(find_default_cache()) / "tests.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def find_once(instruction_set: InstructionSet) -> Path:
    """Find a library. Where several processes lack it, one compiles it and the others wait."""
    with _lock():
        return find_library(instruction_set)


@cache
def load_once(instruction_set: InstructionSet) -> Library:
    """Load a library that has passed its trial; skip the test where this CPU can't run it."""
    if instruction_set not in list_usable_sets(read_cpu_flags()):
        pytest.skip(f"this CPU lacks {instruction_set.value}")
    with _lock():
        return load_library(instruction_set)
