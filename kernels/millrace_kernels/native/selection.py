"""Chooses whether a CPU runs a native library, and which, or torch; and gives the reason."""

from dataclasses import dataclass

from millrace_kernels.native.abi import Library
from millrace_kernels.native.build import find_library, is_installed
from millrace_kernels.native.errors import NativeError, PoolError
from millrace_kernels.native.instruction_sets import (
    InstructionSet,
    is_amx_refused,
    list_usable_sets,
    read_cpu_flags,
)
from millrace_kernels.native.selfcheck import check_library
from millrace_kernels.native.trial import try_once

AUTO, TORCH = "auto", "torch"
CHOICES = (AUTO, TORCH, *(instruction_set.value for instruction_set in InstructionSet))
AMX_REFUSED = "Linux does not let this process use AMX"


@dataclass(frozen=True, slots=True)
class CpuPath:
    """The path that computes on this CPU."""

    library: Library | None
    """None: torch computes."""
    reason: str
    """One line for the log."""
    name: str = TORCH
    """One of CHOICES, never "auto"."""


def select_cpu_path(choice: str = AUTO) -> CpuPath:
    """Return the path for one of CHOICES. Raises NativeError if the chosen path can't be used.

    "auto" selects the fastest library that this CPU supports, that can be found or built, and that passes a
    small case; without any, torch.
    """
    if choice == TORCH:
        return CpuPath(None, "torch computes, as requested")
    flags = read_cpu_flags()
    usable = list_usable_sets(flags)
    if choice != AUTO:
        asked = InstructionSet(choice)
        if asked not in usable:
            raise NativeError(f"{_name_obstacle(asked, flags)}, which the {choice} kernels need")
        return CpuPath(load_library(asked), f"{choice} kernels, as requested", choice)
    return _fastest(usable)


def _name_obstacle(asked: InstructionSet, flags: frozenset[str]) -> str:
    """Return why a CPU with these features can't run an instruction set."""
    if asked is InstructionSet.AMX and is_amx_refused():
        return AMX_REFUSED
    return f"this CPU lacks {', '.join(sorted(asked.cpu_flags - flags))}"


def _fastest(usable: list[InstructionSet]) -> CpuPath:
    troubles = [AMX_REFUSED] if is_amx_refused() else []
    for instruction_set in usable:
        try:
            library = load_library(instruction_set)
        except PoolError as error:
            return CpuPath(None, f"torch computes, slowly: {error}")
        except NativeError as error:
            troubles.append(f"{instruction_set.value}: {error}")
            continue
        extent = "that can run here" if troubles else "that this CPU can run"
        notes = [f"{instruction_set.value} kernels, the fastest {extent}", *troubles]
        return CpuPath(library, "; ".join(notes), instruction_set.value)
    return CpuPath(None, f"torch computes, slowly, because no native kernels work: {'; '.join(troubles)}")


def load_library(instruction_set: InstructionSet) -> Library:
    """Find or build a library, check it, and return it. Raises NativeError.

    A library that was compiled on first use is first tried in a process of its own. An installed library is
    not: every start of a pod would wait for torch's import twice.
    """
    path = find_library(instruction_set)
    if not is_installed(path):
        try_once(path)
    library = Library(path)
    check_library(library)
    return library
