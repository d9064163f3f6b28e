"""Layers whose sizes reach every branch of the kernels."""

from millrace_kernels.native.selfcheck import Case
from millrace_kernels.step import Heads

SHAPES = {
    "no norms": Case(is_normed=False),
    "no rotary": Case(heads=Heads(4, 2, 6), is_turned=False),
    "neither norms nor rotary": Case(heads=Heads(5, 5, 10), is_normed=False, is_turned=False),
    "odd heads": Case(heads=Heads(4, 2, 80)),
    "odd widths": Case(width=38, mlp_width=22, vocabulary=37),
    "no groups": Case(heads=Heads(3, 3, 20)),
    "one KV head": Case(heads=Heads(8, 1, 16)),
    "an odd group": Case(heads=Heads(7, 1, 64)),
    "a large group": Case(width=32, heads=Heads(64, 1, 16)),
    "wide heads": Case(heads=Heads(4, 2, 128), lengths=(70, 2), steps=((70, 2),)),
    "more inputs than a block": Case(width=96, mlp_width=4100),
    "many tokens": Case(lengths=(230, 1), steps=((230, 1),)),
    "several spans of keys": Case(lengths=(1100, 513), steps=((600, 1), (499, 511), (1, 1))),
    "a window within a block": Case(lengths=(45, 7), steps=((20, 1), (24, 5), (1, 1)), window=5),
    "an odd window over tiles": Case(lengths=(200, 80), steps=((150, 1), (49, 78), (1, 1)), window=67),
    "a window over spans": Case(lengths=(1300, 1100), steps=((700, 1), (599, 1098), (1, 1)), window=530),
    "a window longer than the sequence": Case(lengths=(70, 40), steps=((69, 39), (1, 1)), window=90),
    "sinks, clamped gates and biases of experts": Case(has_sinks=True, limit=0.5),
    "sinks over spans": Case(lengths=(1100, 513), steps=((600, 1), (499, 511), (1, 1)), has_sinks=True),
    "sinks beside a window": Case(
        lengths=(1300, 80), steps=((700, 1), (599, 78), (1, 1)), window=67, has_sinks=True
    ),
    "chunks that split a pair": Case(lengths=(24, 7), steps=((3, 1), (8, 2), (1, 1), (12, 3))),
}
PRODUCTS = ("odd widths", "more inputs than a block", "many tokens")
"""Shapes that differ in their products, not in their attention."""
