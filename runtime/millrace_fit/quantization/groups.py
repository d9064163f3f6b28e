"""The groups of inputs with one scale, in config.json and in a worker's memory."""

from typing import Final

from millrace_fit.errors import ArchitectureError
from millrace_fit.fields import Fields

UNIT: Final = 32
"""Inputs that kernels read at once: groups are whole units."""


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
