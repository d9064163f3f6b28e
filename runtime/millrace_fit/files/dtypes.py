"""Number types: their names in files and in config.json, and the types that replicas serve."""

from collections.abc import Mapping
from typing import Any, Final

from millrace_fit.errors import ArchitectureError

STORED_TYPES: Final[Mapping[str, str]] = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Types that hold the weights without scales, by their names in a file's header."""
SERVED_AS: Final[Mapping[str, str]] = {
    "float32": "float32",
    "bfloat16": "bfloat16",
    "float16": "bfloat16",
}
"""By the type that config.json names. float16 has no kernels."""
ITEM_BYTES: Final[Mapping[str, int]] = {"float32": 4, "bfloat16": 2}
"""By the served type."""


def choose_served_type(raw: Mapping[str, Any], stored: str) -> str:
    """Return the type to serve: config.json's, or the stored type if config.json names none.

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
    """Return the stored type of most plain numbers, by the count of numbers of each header type.

    Of a quantised checkpoint these are norms, embeddings and scales. Without any it is float32.
    """
    plain = {name: count for name, count in num_numbers.items() if name in STORED_TYPES}
    most = max(plain, key=lambda name: plain[name], default="F32")
    return STORED_TYPES[most]
