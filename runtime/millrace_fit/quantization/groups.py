"""The groups of inputs with one scale: in config.json, and in a worker's memory."""

from math import gcd
from typing import Final

from millrace_fit.errors import ArchitectureError
from millrace_fit.fields import Fields
from millrace_fit.quantization.scheme import Kind, Packing, Scheme
from millrace_fit.shard import Cut

UNIT: Final = 32
"""Inputs that kernels read at once: groups are whole units."""
_FP8_UNIT: Final = 16
"""The smallest group of 8-bit floats, after a cut."""
_INT4_GROUPS: Final = (128, 64, 32)
"""Those of 4 bits in memory."""


def read_group(fields: Fields, name: str, *, default: int | None = None) -> int | None:
    """Return the inputs of a group; None: a whole row (-1 in config.json). Raises ArchitectureError."""
    if fields.raw.get(name) == -1:
        return None
    return check_group(fields.count(name, default), name)


def check_group(group: int, name: str) -> int:
    """Return a group's size. Raises ArchitectureError if kernels can't read it."""
    if group % UNIT:
        raise ArchitectureError(
            f"config.json has {name} {group}; replicas read multiples of {UNIT}, and -1 for whole rows: take "
            "a checkpoint in groups of 128"
        )
    return group


def find_fault_of_inputs(scheme: Scheme, inputs: int) -> str | None:
    """Return why rows of so many inputs can't be read, in words; None if they can."""
    if scheme.kind is Kind.INT4 and inputs % (scheme.group or UNIT):
        return f"{inputs} inputs, which are no multiple of {scheme.group or UNIT}"
    return None


def can_cut(scheme: Scheme, columns: Cut) -> bool:
    """Whether a worker can have these columns in stored form."""
    if columns.size == columns.total:
        return True
    if scheme.is_ordered:
        return False
    unit = _find_unit(scheme)
    return columns.begin % unit == 0 and (columns.end % unit == 0 or columns.end == columns.total)


def _find_unit(scheme: Scheme) -> int:
    """Return the columns that are cut together: whole words, and what divides groups into smaller ones."""
    match scheme.kind, scheme.packing:
        case Kind.INT4, _:
            return UNIT
        case Kind.FP8, _ if scheme.group is not None:
            return _FP8_UNIT
        case Kind.INT8, Packing.COMPRESSED:
            return 4
    return 1


def fit_group(scheme: Scheme, columns: Cut) -> int | None:
    """Return the inputs with one scale in the memory of a worker with these columns; None: all.

    A group that begins before the worker's columns is cut into smaller ones, which have its scale. So are
    groups that kernels of 4 bits don't know. The worker must be able to have the columns (`can_cut`).
    """
    group = scheme.group
    if group is not None and columns.begin % group:
        group = gcd(group, columns.begin)
    if scheme.kind is not Kind.INT4:
        return group
    # A whole row has one scale, so any groups that fill the worker's columns do.
    base = columns.size if group is None else group
    return next((one for one in _INT4_GROUPS if base % one == 0), UNIT)
