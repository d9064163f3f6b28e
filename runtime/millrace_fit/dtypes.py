"""Types of numbers: as files name them, as config.json does, and as they are served."""

from collections.abc import Mapping
from typing import Any, Final

from millrace_fit.errors import ArchitectureError

STORED_TYPES: Final[Mapping[str, str]] = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Types whose numbers are the weights themselves, by their names in a file's header."""
SERVED_AS: Final[Mapping[str, str]] = {
    "float32": "float32",
    "bfloat16": "bfloat16",
    "float16": "bfloat16",
}
"""By the type that config.json names: float16 has no kernels."""
ITEM_BYTES: Final[Mapping[str, int]] = {"float32": 4, "bfloat16": 2}
"""Of the types that are served."""


def choose_served_type(raw: Mapping[str, Any], stored: str) -> str:
    """Return the type to serve: config.json's, or that of the stored weights if it names none.

    Raises ArchitectureError.
    """
    named = raw.get("dtype") or raw.get("torch_dtype") or stored
    if not isinstance(named, str) or named not in SERVED_AS:
        raise ArchitectureError(
            f"config.json has dtype {named!r}; supported are {', '.join(sorted(SERVED_AS))}: correct it, or "
            "choose with --dtype"
        )
    return SERVED_AS[named]


def choose_stored_type(num_numbers: Mapping[str, int]) -> str:
    """Return the type that most numbers are stored in, by how many there are of each type of a header.

    A type that is not known counts as float32: it is refused as it is read.
    """
    most = max(num_numbers, key=lambda name: num_numbers[name], default="")
    return STORED_TYPES.get(most, "float32")
