"""Mistral, with its window over all layers, and the text part of Mistral Small 3.1 and later."""

from dataclasses import replace

from millrace_fit.families.family import LLAMA_NAMES, UNREAD, Family
from millrace_fit.families.fields import Fields
from millrace_fit.families.parts import read_attention, read_decoder, read_mlp, read_window
from millrace_fit.shape import DecoderShape, LayerShape

MAX_LENGTH = 4096 * 32


def parse(fields: Fields) -> DecoderShape:
    """Return the shape."""
    attention = replace(read_attention(fields, num_kv_heads=8), window=read_window(fields, default=4096))
    layer = LayerShape(attention, read_mlp(fields))
    return read_decoder(fields, [layer] * fields.num_layers, max_length=MAX_LENGTH)


MISTRAL = Family("MistralForCausalLM", parse)

_PREFIX = "language_model."
MISTRAL3 = Family(
    "Mistral3ForConditionalGeneration",
    parse,
    names={part: _PREFIX + name for part, name in LLAMA_NAMES.items()},
    unread=tuple(_PREFIX + name for name in UNREAD),
    beside=("vision_tower.", "multi_modal_projector."),
    text_field="text_config",
)
