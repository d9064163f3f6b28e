"""Which architecture names of config.json we serve, and by which model."""

from collections.abc import Mapping
from typing import Any, Final

from millrace_runtime.models.config import LlamaConfig, parse_llama_config
from millrace_runtime.models.errors import ArchitectureError
from millrace_runtime.models.llama import Llama

ARCHITECTURES: Final[Mapping[str, type[Llama]]] = {
    "LlamaForCausalLM": Llama,
    "MistralForCausalLM": Llama,
    "Qwen2ForCausalLM": Llama,
}


def find_architecture(raw: Mapping[str, Any]) -> tuple[type[Llama], LlamaConfig]:
    """Return the model class and its checked config. Raises ArchitectureError."""
    names = raw.get("architectures") or []
    for name in names:
        if name in ARCHITECTURES:
            return ARCHITECTURES[name], parse_llama_config(raw)
    asked = ", ".join(map(str, names)) or "none"
    raise ArchitectureError(
        f"config.json names the architecture {asked}; supported are {', '.join(sorted(ARCHITECTURES))}"
    )
