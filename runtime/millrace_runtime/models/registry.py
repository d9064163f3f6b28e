"""The supported architectures, by their names in config.json."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from millrace_fit.config import FAMILIES, find_architecture_name
from millrace_fit.shard import ALONE, Shard
from millrace_runtime.models.llama import llama_architecture
from millrace_runtime.models.model import Architecture

ARCHITECTURES: Final[Mapping[str, Callable[[Mapping[str, Any], Shard], Architecture]]] = {
    name: partial(llama_architecture, family) for name, family in FAMILIES.items()
}


def find_architecture(raw: Mapping[str, Any], shard: Shard = ALONE) -> Architecture:
    """Return a shard of the architecture that a config.json describes. Raises ArchitectureError."""
    return ARCHITECTURES[find_architecture_name(raw)](raw, shard)
