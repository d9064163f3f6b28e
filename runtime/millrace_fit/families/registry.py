"""The families that are served, by their names in config.json."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from millrace_fit.errors import ArchitectureError
from millrace_fit.families.family import Family
from millrace_fit.families.llama import LLAMA
from millrace_fit.families.mistral import MISTRAL, MISTRAL3
from millrace_fit.families.mixtral import MIXTRAL
from millrace_fit.families.qwen2 import QWEN2
from millrace_fit.families.qwen2_moe import QWEN2_MOE
from millrace_fit.families.qwen3 import QWEN3
from millrace_fit.families.qwen3_moe import QWEN3_MOE
from millrace_fit.families.qwen_vl import QWEN3_VL, QWEN25_VL
from millrace_fit.families.smollm3 import SMOLLM3
from millrace_fit.fields import Fields
from millrace_fit.quantization.quantization import NOT_QUANTIZED, Quantization
from millrace_fit.quantization.read import read_quantization
from millrace_fit.shape import DecoderShape

FAMILIES: Final[Mapping[str, Family]] = {
    family.architecture: family
    for family in (
        LLAMA,
        MISTRAL,
        MISTRAL3,
        MIXTRAL,
        QWEN2,
        QWEN2_MOE,
        QWEN3,
        QWEN3_MOE,
        QWEN25_VL,
        QWEN3_VL,
        SMOLLM3,
    )
}


class Declared(NamedTuple):
    """A model as its config.json and its family declare it."""

    family: Family
    shape: DecoderShape
    quantization: Quantization = NOT_QUANTIZED

    def fit_to(self, names: Iterable[str]) -> "Declared":
        """Return the model of a checkpoint with tensors of these names, which decide what is left open."""
        return self._replace(quantization=self.quantization.fit_to(names))


def find_family(raw: Mapping[str, Any]) -> Family:
    """Return the first family that a config.json names. Raises ArchitectureError."""
    names = raw.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ArchitectureError(f"config.json has architectures {names!r}; it must be a list of names")
    for name in names:
        if name in FAMILIES:
            return FAMILIES[name]
    asked = ", ".join(names) or "none"
    raise ArchitectureError(f"config.json names the architecture {asked}; {_propose(asked)}{_list_known()}")


_ALONE, _WITH_TEXT = "ForCausalLM", "ForConditionalGeneration"


def _list_known() -> str:
    """Return which architectures are served, briefly: a termination message has few letters."""
    parts = [name.removesuffix(_WITH_TEXT) for name in sorted(FAMILIES) if name.endswith(_WITH_TEXT)]
    first, *others = (name for name in sorted(FAMILIES) if not name.endswith(_WITH_TEXT))
    whole = [first, *(name.removesuffix(_ALONE) for name in others)]
    return f"supported are {', '.join(whole)}, and the text parts of {', '.join(parts)}"


_DENSE, _MIXTURE = "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"
NEAREST: Final[Mapping[str, str]] = {
    "Qwen3Moe": _MIXTURE,
    "Qwen3VLMoe": _MIXTURE,
    "Qwen3Next": _MIXTURE,
    "Qwen": _DENSE,
    "Mist": "MistralForCausalLM",
    "Minist": "MistralForCausalLM",
    "Mixt": "MixtralForCausalLM",
    "Llama": "LlamaForCausalLM",
    "SmolLM": "SmolLM3ForCausalLM",
    "GptOss": _MIXTURE,
    "Deepseek": _MIXTURE,
    "Glm4Moe": _MIXTURE,
    "MiniMax": _MIXTURE,
    "Gemma": _DENSE,
    "Phi": _DENSE,
    "Granite": _DENSE,
    "Olmo": _DENSE,
}
"""By the beginning of an architecture's name, the served one that comes closest: of the same makers, else one
of the same kind and of similar sizes."""


def _propose(asked: str) -> str:
    near = next((name for beginning, name in NEAREST.items() if asked.startswith(beginning)), None)
    return f"the nearest is {near}; " if near else ""


_OUTER: Final = ("quantization_config", "compression_config", "tie_word_embeddings")
"""Fields of the whole model, which count more than the text model's own."""


def declare(raw: Mapping[str, Any]) -> Declared:
    """Return what a config.json describes. Raises ArchitectureError, which names the field."""
    family = find_family(raw)
    if family.text_field is None or (family.may_be_flat and family.text_field not in raw):
        return Declared(family, family.parse(Fields(raw)), read_quantization(raw))
    text = raw.get(family.text_field)
    if not isinstance(text, Mapping):
        raise ArchitectureError(f"config.json has {family.text_field} {text!r}; it must be an object")
    merged = {**text, **{name: raw[name] for name in _OUTER if name in raw}}
    return Declared(family, family.parse(Fields(merged)), read_quantization(merged))
