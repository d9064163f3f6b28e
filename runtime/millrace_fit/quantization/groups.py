"""The groups of inputs with one scale: in config.json, and in a worker's memory."""

from math import gcd
from typing import Final

from millrace_fit.errors import ArchitectureError
from millrace_fit.fields import Fields
from millrace_fit.quantization.scheme import WORD_NIBBLES, Kind, Packing, Scheme
from millrace_fit.shard import Cut

UNIT: Final = 32
"""Inputs that kernels read at once: groups are whole units."""
_USUAL_GROUP: Final = 1024
"""Larger ones must fit into the matrix. A small model may have fewer inputs than its groups."""
_STRIP_GROUPS: Final = (128, 64, 32, 16)
"""Those of strips, the longest first (`native/weights/stored_strips.py`)."""


def read_group(fields: Fields, name: str, *, default: int) -> int | None:
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


def find_fault_of_size(scheme: Scheme, outputs: int, inputs: int) -> str | None:
    """Return why a matrix of this size can't be read, in words; None if it can."""
    if (scheme.rows or 1) > max(outputs, _USUAL_GROUP) or (scheme.group or 1) > max(inputs, _USUAL_GROUP):
        return f"{outputs} outputs and {inputs} inputs, fewer than one block of {scheme}"
    if scheme.kind in {Kind.INT4, Kind.MXFP4} and inputs % (scheme.group or UNIT):
        return f"{inputs} inputs, which are no multiple of {scheme.group or UNIT}"
    return None


def can_cut(scheme: Scheme, rows: Cut, columns: Cut) -> bool:
    """Whether a worker can have these rows and columns in stored form."""
    is_in_words = scheme.packing in {Packing.AWQ, Packing.GPTQ, Packing.GPTQ_V2}
    if is_in_words and not _is_at_units(rows, WORD_NIBBLES):
        return False
    if columns.size == columns.total:
        return True
    return not scheme.is_ordered and _is_at_units(columns, _find_unit(scheme))


def _is_at_units(cut: Cut, unit: int) -> bool:
    return cut.begin % unit == 0 and (cut.end % unit == 0 or cut.end == cut.total)


def _find_unit(scheme: Scheme) -> int:
    """Return the columns that are cut together: whole words, and what divides groups into smaller ones."""
    match scheme.kind, scheme.packing:
        case Kind.INT4, _:
            return UNIT
        case Kind.FP8, _ if scheme.group is not None:
            return UNIT
        case Kind.INT8, Packing.COMPRESSED:
            return 4
    return 1


def cut_group(scheme: Scheme, columns: Cut) -> int | None:
    """Return the inputs that share a scale among a worker's columns; None: all.

    A group that a cut divides becomes smaller ones, which have its scale. The worker must be able to have the
    columns (`can_cut`).
    """
    if scheme.group is None:
        return None
    return gcd(scheme.group, columns.begin, 0 if columns.end == columns.total else columns.end)


def fit_strips(kind: Kind, group: int | None) -> int | None:
    """Return the inputs of a group in strips on CPUs, whose kernels know few sizes; None: all."""
    if group is None:
        return _STRIP_GROUPS[0] if kind is Kind.INT4 else None
    return next((one for one in _STRIP_GROUPS if group % one == 0), group)
