"""The architectures that are served, by their names in config.json."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from millrace_runtime.models.config import LLAMA, MISTRAL, QWEN2
from millrace_runtime.models.errors import ArchitectureError
from millrace_runtime.models.llama import llama_architecture
from millrace_runtime.models.model import Architecture
from millrace_runtime.models.shard import ALONE, Shard

ARCHITECTURES: Final[Mapping[str, Callable[[Mapping[str, Any], Shard], Architecture]]] = {
    "LlamaForCausalLM": partial(llama_architecture, LLAMA),
    "MistralForCausalLM": partial(llama_architecture, MISTRAL),
    "Qwen2ForCausalLM": partial(llama_architecture, QWEN2),
}


def find_architecture(raw: Mapping[str, Any], shard: Shard = ALONE) -> Architecture:
    """Return a shard of the architecture that a config.json describes. Raises ArchitectureError."""
    names = raw.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ArchitectureError(f"config.json has architectures {names!r}; it must be a list of names")
    for name in names:
        if name in ARCHITECTURES:
            return ARCHITECTURES[name](raw, shard)
    asked = ", ".join(names) or "none"
    raise ArchitectureError(
        f"config.json names the architecture {asked}; supported are {', '.join(sorted(ARCHITECTURES))}"
    )
