"""SmolLM3: Llama with layers that know no positions (Bakouch et al., 2025)."""

from dataclasses import replace

from millrace_fit.declaration.family import Family
from millrace_fit.declaration.parts import (
    read_attention,
    read_decoder,
    read_mlp,
    read_named_windows,
    read_window,
)
from millrace_fit.fields import Fields
from millrace_fit.shape import DecoderShape, LayerShape


def parse(fields: Fields) -> DecoderShape:
    """Return the shape. A window is in layers without rotary alone, unless `layer_types` says otherwise."""
    num_layers, bias = fields.num_layers, fields.flag("attention_bias")
    attention = read_attention(fields, num_kv_heads=4, has_bias=bias, has_output_bias=bias)
    mlp = read_mlp(fields, has_bias=fields.flag("mlp_bias"))
    window = read_window(fields) if fields.flag("use_sliding_window") else None
    turned = fields.items("no_rope_layers", num_layers, 0, 1)
    if turned is None:
        interval = fields.count("no_rope_layer_interval", 4)
        turned = [int((number + 1) % interval != 0) for number in range(num_layers)]
    windows = read_named_windows(fields, window)
    if windows is None:
        windows = [None if one else window for one in turned]
    layers = [
        LayerShape(replace(attention, has_rotary=bool(one), window=own), mlp)
        for one, own in zip(turned, windows, strict=True)
    ]
    return read_decoder(fields, layers, theta=2e6, max_length=32768, is_tied=True)


SMOLLM3 = Family("SmolLM3ForCausalLM", "smollm3", parse)
