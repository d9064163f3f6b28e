"""Mistral, with its window over all layers, and the text part of Mistral Small 3.1 and later."""

from dataclasses import replace

from millrace_fit.families.family import LLAMA_NAMES, UNREAD, Family
from millrace_fit.families.parts import read_attention, read_decoder, read_mlp, read_window, read_windows
from millrace_fit.fields import Fields
from millrace_fit.shape import DecoderShape, LayerShape

MAX_LENGTH = 4096 * 32


def parse(fields: Fields) -> DecoderShape:
    """Return the shape."""
    attention, mlp = read_attention(fields, num_kv_heads=8), read_mlp(fields)
    windows = read_windows(fields, read_window(fields, default=4096), num_unwindowed=0)
    layers = [LayerShape(replace(attention, window=window), mlp) for window in windows]
    return read_decoder(fields, layers, max_length=MAX_LENGTH)


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
