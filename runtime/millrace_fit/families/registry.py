"""The families that are served, by their names in config.json."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from millrace_fit.errors import ArchitectureError
from millrace_fit.families.family import Family
from millrace_fit.families.foreign_fields import refuse_foreign
from millrace_fit.families.llama import LLAMA
from millrace_fit.families.mistral import MINISTRAL3, MISTRAL, MISTRAL3
from millrace_fit.families.mixtral import MIXTRAL
from millrace_fit.families.nearest import propose
from millrace_fit.families.qwen2 import MIMO, QWEN2
from millrace_fit.families.qwen2_moe import QWEN2_MOE
from millrace_fit.families.qwen3 import QWEN3
from millrace_fit.families.qwen3_moe import QWEN3_MOE
from millrace_fit.families.qwen_vl import QWEN2_VL, QWEN3_VL, QWEN25_VL
from millrace_fit.families.seed_oss import SEED_OSS
from millrace_fit.families.smollm3 import SMOLLM3
from millrace_fit.families.spelling import spell
from millrace_fit.fields import Fields
from millrace_fit.quantization.quantization import NOT_QUANTIZED, Quantization
from millrace_fit.quantization.read import read_quantization
from millrace_fit.shape import DecoderShape

FAMILIES: Final[Mapping[str, Family]] = {
    family.architecture: family
    for family in (
        LLAMA,
        MIMO,
        MINISTRAL3,
        MISTRAL,
        MISTRAL3,
        MIXTRAL,
        QWEN2,
        QWEN2_MOE,
        QWEN3,
        QWEN3_MOE,
        QWEN2_VL,
        QWEN25_VL,
        QWEN3_VL,
        SEED_OSS,
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
    raise ArchitectureError(f"config.json names the architecture {propose(asked, raw)}{_list_known()}")


_ALONE, _WITH_TEXT = "ForCausalLM", "ForConditionalGeneration"


def _list_known() -> str:
    """Return which architectures are served, briefly: a termination message has few letters."""
    parts = [name.removesuffix(_WITH_TEXT) for name in sorted(FAMILIES) if name.endswith(_WITH_TEXT)]
    first, *others = (name for name in sorted(FAMILIES) if not name.endswith(_WITH_TEXT))
    whole = [first, *(name.removesuffix(_ALONE) for name in others)]
    return f"supported are {', '.join(whole)}, and the text parts of {', '.join(parts)}"


T = TypeVar("T")


def name_tensors(raw: Mapping[str, Any], tensors: Mapping[str, T]) -> dict[str, T]:
    """Return tensors by the names that the family declares, whichever of its spellings the files have."""
    try:
        spellings = find_family(raw).spellings
    except ArchitectureError:
        return dict(tensors)
    return {name: tensors[stored] for stored, name in spell(tensors.keys(), spellings).items()}


_TIED: Final = "tie_word_embeddings"
_OUTER: Final = ("quantization_config", "compression_config", _TIED)
"""Fields of the whole model, which count more than the text model's own."""


def declare(raw: Mapping[str, Any]) -> Declared:
    """Return what a config.json describes. Raises ArchitectureError, which names the field."""
    family = find_family(raw)
    _check_type(raw, (family.model_type,), family.architecture)
    refuse_foreign(raw, family.known)
    fields = raw if _is_flat(family, raw) else _find_text(family, raw)
    return Declared(family, family.parse(Fields(fields)), read_quantization(fields))


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
    # As in transformers: earlier releases wrote it into the text's config, beside a default outside.
    if family.may_be_flat and text.get(_TIED) is True:
        outer[_TIED] = True
    return {**text, **outer}


def _check_type(raw: Mapping[str, Any], known: Sequence[str], architecture: str, place: str = "") -> None:
    """Raise ArchitectureError for another model's `model_type`: transformers would build that one."""
    if (found := raw.get("model_type")) not in (None, *known):
        raise ArchitectureError(
            f"config.json has model_type {found!r}{place}; {architecture} is of "
            f"{' or '.join(map(repr, known))}: use the config.json that came with the weights"
        )
