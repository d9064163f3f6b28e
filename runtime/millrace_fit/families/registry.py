"""The families that are served, by their names in config.json."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from millrace_fit.declaration.family import Family, spell
from millrace_fit.declaration.layout import Shapes, Source, locate
from millrace_fit.declaration.refusals import propose, refuse_foreign
from millrace_fit.errors import ArchitectureError
from millrace_fit.families.ernie import ERNIE
from millrace_fit.families.gemma3 import GEMMA3, GEMMA3_TEXT
from millrace_fit.families.glm import GLM, GLM4
from millrace_fit.families.gpt_oss import GPT_OSS
from millrace_fit.families.granite import GRANITE, GRANITE_HYBRID, GRANITE_MOE
from millrace_fit.families.internlm3 import INTERNLM3
from millrace_fit.families.llama import LLAMA
from millrace_fit.families.minicpm import MINICPM
from millrace_fit.families.mistral import MINISTRAL3, MISTRAL, MISTRAL3
from millrace_fit.families.mixtral import MIXTRAL
from millrace_fit.families.multimodal import MULTIMODAL
from millrace_fit.families.phi3 import PHI3
from millrace_fit.families.qwen2 import MIMO, QWEN2
from millrace_fit.families.qwen3 import QWEN3
from millrace_fit.families.qwen_moe import QWEN2_MOE, QWEN3_MOE
from millrace_fit.families.qwen_vl import QWEN2_VL, QWEN3_VL, QWEN3_VL_MOE, QWEN25_VL
from millrace_fit.families.seed_oss import SEED_OSS
from millrace_fit.families.smollm3 import SMOLLM3
from millrace_fit.fields import Fields
from millrace_fit.files.headers import StoredTensor
from millrace_fit.quantization.methods import read_quantization
from millrace_fit.quantization.rules import NOT_QUANTIZED, Quantization
from millrace_fit.shape import DecoderShape

FAMILIES: Final[Mapping[str, Family]] = {
    family.architecture: family
    for family in (
        ERNIE,
        GEMMA3,
        GEMMA3_TEXT,
        GLM,
        GLM4,
        GPT_OSS,
        GRANITE,
        GRANITE_HYBRID,
        GRANITE_MOE,
        INTERNLM3,
        LLAMA,
        MIMO,
        MINICPM,
        MINISTRAL3,
        MISTRAL,
        MISTRAL3,
        MIXTRAL,
        PHI3,
        QWEN2,
        QWEN2_MOE,
        QWEN3,
        QWEN3_MOE,
        QWEN2_VL,
        QWEN25_VL,
        QWEN3_VL,
        QWEN3_VL_MOE,
        SEED_OSS,
        SMOLLM3,
        *MULTIMODAL,
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
    raise ArchitectureError(
        f"config.json names the architecture {propose(asked, raw)}{PAGE} lists what is served"
    )


PAGE: Final = "docs/how-to/own-model.md"
"""It lists the families. A termination message has too few letters for that."""


def locate_tensors(raw: Mapping[str, Any], stored: Shapes) -> dict[str, Source]:
    """Return where files have each tensor, by the family's names, whichever of its spellings they have."""
    try:
        family = find_family(raw)
    except ArchitectureError:
        return {name: Source(name) for name in stored}
    spelt = {name: one for one, name in spell(stored.keys(), family.spellings).items()}
    try:
        shape = declare(raw).shape if family.layout else None
    except ArchitectureError:
        shape = None
    if shape is None:
        return {name: Source(one) for name, one in spelt.items()}
    shapes = {name: stored[one] for name, one in spelt.items()}
    found = locate(family.layout, family.names, shape, shapes)
    return {name: source._replace(name=spelt[source.name]) for name, source in found.items()}


def name_tensors(raw: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return each tensor that the family declares, by its declared name, as headers describe it."""
    sources = locate_tensors(raw, {name: tensor.shape for name, tensor in tensors.items()})
    return {name: source.cut(tensors[source.name], name) for name, source in sources.items()}


_TIED: Final = "tie_word_embeddings"
_OUTER: Final = ("quantization_config", "compression_config", _TIED)
"""Fields of the whole model, which count more than the text model's own."""


def declare(raw: Mapping[str, Any]) -> Declared:
    """Return what a config.json describes. Raises ArchitectureError, which names the field."""
    family = find_family(raw)
    _check_type(raw, (family.model_type,), family.architecture)
    refuse_foreign(raw, family.known)
    fields = raw if _is_flat(family, raw) else _find_text(family, raw)
    quantization = replace(read_quantization(fields), stored_names=_name_stored(family))
    return Declared(family, family.parse(Fields(fields)), quantization)


def _name_stored(family: Family) -> Mapping[str, str]:
    """Return the last word of a part's name in files, by the last word of its declared name."""
    return {
        family.names[part].rpartition(".")[2]: joined.stored.rpartition(".")[2]
        for joined in family.layout
        for part in joined.parts
    }


def _is_flat(family: Family, raw: Mapping[str, Any]) -> bool:
    return family.text_field is None or (family.may_be_flat and family.text_field not in raw)


def _find_text(family: Family, raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the text model's fields, with those of the whole model. Raises ArchitectureError."""
    text = raw.get(family.text_field or "")
    if not isinstance(text, Mapping):
        raise ArchitectureError(f"config.json has {family.text_field} {text!r}; it must be an object")
    _check_type(text, family.text_types, family.architecture, f" in {family.text_field}")
    refuse_foreign(text, family.known)
    outer = {name: raw[name] for name in _OUTER if name in raw}
    if family.is_tied_by_text and text.get(_TIED) is True:
        outer[_TIED] = True
    return {**text, **outer}


def _check_type(raw: Mapping[str, Any], known: Sequence[str], architecture: str, place: str = "") -> None:
    """Raise ArchitectureError for another model's `model_type`: transformers would build that one."""
    if (found := raw.get("model_type")) not in (None, *known):
        raise ArchitectureError(
            f"config.json has model_type {found!r}{place}; {architecture} is of "
            f"{' or '.join(map(repr, known))}: use the config.json that came with the weights"
        )
