"""Mistral, with its window over all layers, Ministral 3, and the text parts of models that read images."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from millrace_fit.declaration.family import LLAMA_NAMES, UNREAD, Family
from millrace_fit.declaration.parts import read_attention, read_decoder, read_mlp, read_window, read_windows
from millrace_fit.fields import Fields
from millrace_fit.shape import DecoderShape, LayerShape

MAX_LENGTH = 4096 * 32


def parse(fields: Fields) -> DecoderShape:
    """Return the shape."""
    attention, mlp = read_attention(fields, num_kv_heads=8), read_mlp(fields)
    windows = read_windows(fields, read_window(fields, default=4096), num_unwindowed=0)
    layers = [LayerShape(replace(attention, window=window), mlp) for window in windows]
    return read_decoder(fields, layers, max_length=MAX_LENGTH)


_YARN: Final[Mapping[str, Any]] = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
_DEFAULTS: Final[Mapping[str, Any]] = {
    "head_dim": 128,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-5,
    "rope_parameters": _YARN,
    "sliding_window": None,
}
_MINISTRAL3: Final = "ministral3"


def parse_ministral3(fields: Fields) -> DecoderShape:
    """Return the shape of Ministral 3: Mistral with YaRN, up to the length where it scales no query."""
    return parse(fields.with_defaults(_DEFAULTS))


def parse_text(fields: Fields) -> DecoderShape:
    """Return the shape of a text part."""
    is_ministral = fields.raw.get("model_type") == _MINISTRAL3
    return parse_ministral3(fields) if is_ministral else parse(fields)


MISTRAL = Family("MistralForCausalLM", "mistral", parse)
MINISTRAL3 = Family("Ministral3ForCausalLM", _MINISTRAL3, parse_ministral3)

_PREFIX = "language_model."
MISTRAL3 = Family(
    "Mistral3ForConditionalGeneration",
    "mistral3",
    parse_text,
    names={part: _PREFIX + name for part, name in LLAMA_NAMES.items()},
    spellings=(
        {
            "model.language_model.": "language_model.model.",
            "model.vision_tower.": "vision_tower.",
            "model.multi_modal_projector.": "multi_modal_projector.",
            "lm_head.": "language_model.lm_head.",
        },
    ),
    unread=tuple(_PREFIX + name for name in UNREAD),
    beside=("vision_tower.", "multi_modal_projector."),
    text_field="text_config",
    text_types=("mistral", _MINISTRAL3),
)
