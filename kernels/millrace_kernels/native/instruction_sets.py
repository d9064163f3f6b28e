"""The instruction sets for which the native library is built, and those of this CPU."""

import enum
import platform
from collections.abc import Iterable
from pathlib import Path

X86 = frozenset({"x86_64", "AMD64"})
_AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma")


class InstructionSet(enum.Enum):
    """One build of the library; the value is its name in flags, files and logs."""

    AVX512_BF16 = "avx512_bf16"
    AVX512_VNNI = "avx512_vnni"
    AVX512 = "avx512"
    AVX2 = "avx2"
    PORTABLE = "portable"

    @property
    def compiler_flags(self) -> tuple[str, ...]:
        """The compiler's flags; none for the portable build."""
        return {
            InstructionSet.AVX512_BF16: (*_AVX512, "-mavx512bf16", "-mavx512vnni"),
            InstructionSet.AVX512_VNNI: (*_AVX512, "-mavx512vnni"),
            InstructionSet.AVX512: _AVX512,
            InstructionSet.AVX2: ("-mavx2", "-mfma"),
            InstructionSet.PORTABLE: (),
        }[self]

    @property
    def cpu_flags(self) -> frozenset[str]:
        """The features that /proc/cpuinfo must list."""
        avx512 = frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "fma"})
        return {
            InstructionSet.AVX512_BF16: avx512 | {"avx512_bf16", "avx512_vnni"},
            InstructionSet.AVX512_VNNI: avx512 | {"avx512_vnni"},
            InstructionSet.AVX512: avx512,
            InstructionSet.AVX2: frozenset({"avx2", "fma"}),
            InstructionSet.PORTABLE: frozenset[str](),
        }[self]


def read_cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Return this CPU's features; none if they can't be read, or if it is no x86."""
    if platform.machine() not in X86:
        return frozenset()
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    return next((frozenset(line.split()) for line in lines if line.startswith("flags")), frozenset())


def buildable_sets() -> list[InstructionSet]:
    """Return the instruction sets for which a compiler here can build: x86's only on x86."""
    return list(InstructionSet) if platform.machine() in X86 else [InstructionSet.PORTABLE]


def usable_sets(flags: Iterable[str]) -> list[InstructionSet]:
    """Return the instruction sets of a CPU with these features, the fastest first."""
    have = frozenset(flags)
    return [candidate for candidate in InstructionSet if candidate.cpu_flags <= have]
