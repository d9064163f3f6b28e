"""The instruction sets for which the native library is built, and those of this CPU."""

import ctypes
import enum
import platform
from collections.abc import Iterable
from functools import cache
from pathlib import Path

X86 = frozenset({"x86_64", "AMD64"})
_TILES = frozenset({"amx_tile", "amx_bf16"})
_CPUINFO = Path("/proc/cpuinfo")
_AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma")


class InstructionSet(enum.Enum):
    """One build of the library; the value is its name in flags, files and logs."""

    AMX = "amx"
    AVX512_BF16 = "avx512_bf16"
    AVX512_VNNI = "avx512_vnni"
    AVX512 = "avx512"
    AVX2 = "avx2"
    PORTABLE = "portable"

    @property
    def compiler_flags(self) -> tuple[str, ...]:
        """The compiler's flags; none for the portable build."""
        bfloat16 = (*_AVX512, "-mavx512bf16", "-mavx512vnni")
        return {
            InstructionSet.AMX: (*bfloat16, "-mamx-tile", "-mamx-bf16"),
            InstructionSet.AVX512_BF16: bfloat16,
            InstructionSet.AVX512_VNNI: (*_AVX512, "-mavx512vnni"),
            InstructionSet.AVX512: _AVX512,
            InstructionSet.AVX2: ("-mavx2", "-mfma"),
            InstructionSet.PORTABLE: (),
        }[self]

    @property
    def cpu_flags(self) -> frozenset[str]:
        """The features that /proc/cpuinfo must list."""
        avx512 = frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "fma"})
        bfloat16 = avx512 | {"avx512_bf16", "avx512_vnni"}
        return {
            InstructionSet.AMX: bfloat16 | _TILES,
            InstructionSet.AVX512_BF16: bfloat16,
            InstructionSet.AVX512_VNNI: avx512 | {"avx512_vnni"},
            InstructionSet.AVX512: avx512,
            InstructionSet.AVX2: frozenset({"avx2", "fma"}),
            InstructionSet.PORTABLE: frozenset[str](),
        }[self]


def read_cpu_flags(cpuinfo: Path = _CPUINFO) -> frozenset[str]:
    """Return this CPU's features; none if they can't be read, or if it is no x86.

    AMX is left out where Linux does not let this process use it.
    """
    flags = _list_cpu_flags(cpuinfo)
    return flags - _TILES if is_amx_refused(cpuinfo) else flags


def is_amx_refused(cpuinfo: Path = _CPUINFO) -> bool:
    """Whether this CPU has AMX, and Linux does not let this process use it."""
    return bool(_list_cpu_flags(cpuinfo) & _TILES) and not _may_use_tiles()


def _list_cpu_flags(cpuinfo: Path) -> frozenset[str]:
    if platform.machine() not in X86:
        return frozenset()
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    return next((frozenset(line.split()) for line in lines if line.startswith("flags")), frozenset())


@cache
def _may_use_tiles() -> bool:
    """Ask Linux for AMX's tiles, in this process. Kernels before 5.16 and some sandboxes say no."""
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    return bool(ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data) == 0)


def list_buildable_sets() -> list[InstructionSet]:
    """Return the instruction sets for which a compiler here can build: x86's only on x86."""
    return list(InstructionSet) if platform.machine() in X86 else [InstructionSet.PORTABLE]


def list_usable_sets(flags: Iterable[str]) -> list[InstructionSet]:
    """Return the instruction sets of a CPU with these features, the fastest first."""
    have = frozenset(flags)
    return [candidate for candidate in InstructionSet if candidate.cpu_flags <= have]
