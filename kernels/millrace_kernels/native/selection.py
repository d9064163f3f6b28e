"""Decides, for the whole project, which path a CPU runs, and why."""

from dataclasses import dataclass

from millrace_kernels.native.abi import Library
from millrace_kernels.native.build import find_library, is_installed
from millrace_kernels.native.errors import NativeError, PoolError
from millrace_kernels.native.instruction_sets import InstructionSet, read_cpu_flags, usable_sets
from millrace_kernels.native.selfcheck import check_library
from millrace_kernels.native.trial import try_once

AUTO, TORCH = "auto", "torch"
CHOICES = (AUTO, TORCH, *(instruction_set.value for instruction_set in InstructionSet))


@dataclass(frozen=True, slots=True)
class CpuPath:
    """What computes on this CPU."""

    library: Library | None
    """None: torch computes."""
    reason: str
    """One line for the log."""
    name: str = TORCH
    """What computes: one of CHOICES, and not "auto"."""


def select_cpu_path(choice: str = AUTO) -> CpuPath:
    """Return the path for one of CHOICES. Raises NativeError if the chosen path can't be used.

    With "auto" it is the fastest library that this CPU has the instructions for, that can be found or built,
    and that passes a small case; torch without any.
    """
    if choice == TORCH:
        return CpuPath(None, "torch computes, as asked")
    flags = read_cpu_flags()
    usable = usable_sets(flags)
    if choice != AUTO:
        asked = InstructionSet(choice)
        if asked not in usable:
            missing = ", ".join(sorted(asked.cpu_flags - flags))
            raise NativeError(f"this CPU lacks {missing}, which the {choice} kernels need")
        return CpuPath(load_library(asked), f"{choice} kernels, as asked", choice)
    return _fastest(usable, flags)


def _fastest(usable: list[InstructionSet], flags: frozenset[str]) -> CpuPath:
    troubles = []
    for instruction_set in usable:
        try:
            library = load_library(instruction_set)
        except PoolError as error:
            return CpuPath(None, f"torch computes, slowly: {error}")
        except NativeError as error:
            troubles.append(f"{instruction_set.value}: {error}")
            continue
        notes = [f"{instruction_set.value} kernels, the fastest that this CPU can run"]
        notes += ["its AMX is not used yet"] if "amx_tile" in flags else []
        return CpuPath(library, "; ".join([*notes, *troubles]), instruction_set.value)
    return CpuPath(None, f"torch computes, slowly, for want of native kernels: {'; '.join(troubles)}")


def load_library(instruction_set: InstructionSet) -> Library:
    """Return a library that was found or built, and has passed its trial. Raises NativeError.

    One that was compiled on first use is first tried in a process of its own. An installed one is not: a new
    pod would wait for torch's import twice, at every start.
    """
    path = find_library(instruction_set)
    if not is_installed(path):
        try_once(path)
    library = Library(path)
    check_library(library)
    return library
