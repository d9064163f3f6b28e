"""Which architecture names of config.json we serve, and by which model."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from millrace_runtime.models.errors import ArchitectureError
from millrace_runtime.models.llama import llama_architecture
from millrace_runtime.models.model import Architecture

ARCHITECTURES: Final[Mapping[str, Callable[[Mapping[str, Any]], Architecture]]] = {
    "LlamaForCausalLM": llama_architecture,
    "MistralForCausalLM": llama_architecture,
    "Qwen2ForCausalLM": llama_architecture,
}


def find_architecture(raw: Mapping[str, Any]) -> Architecture:
    """Return what a config.json describes. Raises ArchitectureError."""
    names = raw.get("architectures") or []
    for name in names:
        if name in ARCHITECTURES:
            return ARCHITECTURES[name](raw)
    asked = ", ".join(map(str, names)) or "none"
    raise ArchitectureError(
        f"config.json names the architecture {asked}; supported are {', '.join(sorted(ARCHITECTURES))}"
    )
