"""The text parts of models that also read images or sounds, where the text is a family of its own."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from millrace_fit.declaration.family import LLAMA_NAMES, UNREAD, Family
from millrace_fit.families import llama, mistral, qwen2, qwen3
from millrace_fit.families.mistral import MISTRAL3
from millrace_fit.fields import Fields
from millrace_fit.shape import DecoderShape

_PARSE: Final[Mapping[str, Callable[[Fields], DecoderShape]]] = MappingProxyType(
    {"llama": llama.parse, "mistral": mistral.parse, "qwen2": qwen2.parse, "qwen3": qwen3.parse}
)
_SIZES: Final = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
}
_QWEN: Final = {"intermediate_size": 22016, "vocab_size": 151936}
_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "llama": _SIZES,
        "mistral": _SIZES | {"intermediate_size": 14336},
        "qwen2": _SIZES | _QWEN,
        "qwen3": _SIZES | _QWEN,
    }
)
"""transformers' sizes of each text: a config.json beside images often has only what differs from them."""


def _parse_text(kind: str) -> Callable[[Fields], DecoderShape]:
    """Return the parser of a text part, which is of this `model_type` unless it says another."""

    def parse(fields: Fields) -> DecoderShape:
        named = str(fields.raw.get("model_type") or kind)
        return _PARSE[named](fields.with_defaults(_DEFAULTS[named]))

    return parse


def _make(architecture: str, model_type: str, kind: str, *beside: str) -> Family:
    """Return a family with the names that LLaVA's files have."""
    return MISTRAL3._replace(
        architecture=architecture,
        model_type=model_type,
        parse=_parse_text(kind),
        spellings=tuple(
            {**spelling, **{f"model.{one}": one for one in beside}} for spelling in MISTRAL3.spellings
        ),
        beside=(*MISTRAL3.beside, *beside),
        text_types=tuple(_PARSE),
    )


_MODEL, _TEXT = "model.", "model.text_model."
SMOLVLM = Family(
    "SmolVLMForConditionalGeneration",
    "smolvlm",
    _parse_text("llama"),
    names={part: name.replace(_MODEL, _TEXT, 1) for part, name in LLAMA_NAMES.items()},
    unread=tuple(name.replace(_MODEL, _TEXT, 1) for name in UNREAD),
    beside=("model.vision_model.", "model.connector."),
    text_field="text_config",
    text_types=tuple(_PARSE),
)
_ONEVISION: Final = _make(
    "LlavaOnevisionForConditionalGeneration", "llava_onevision", "qwen2", "image_newline"
)
MULTIMODAL: Final = (
    _make("LlavaForConditionalGeneration", "llava", "llama")._replace(is_tied_by_text=True),
    _make("LlavaNextForConditionalGeneration", "llava_next", "llama", "image_newline"),
    _ONEVISION._replace(is_tied_by_text=True),
    _make("InternVLForConditionalGeneration", "internvl", "qwen2"),
    _make("VoxtralForConditionalGeneration", "voxtral", "llama", "audio_tower."),
    _make("Qwen2AudioForConditionalGeneration", "qwen2_audio", "qwen2", "audio_tower."),
    SMOLVLM,
    SMOLVLM._replace(architecture="Idefics3ForConditionalGeneration", model_type="idefics3"),
)
