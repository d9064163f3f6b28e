"""A model at full cost whose next token depends on the last one alone, so that its text is known.

The outputs of attention and MLP are multiplied by zero: a step computes all, and adds nothing. So the last
layer sees the token's embedding. All tokens of a place have one embedding, and in the head the tokens of the
next place have it as their row: their logits are equal, and far above all others.
"""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.runtime.drafts.texts import list_steps
from benchmarks.runtime.models.checkpoint import write_model
from benchmarks.runtime.models.shapes import SMALL, Shape

WALKING = replace(SMALL, is_tied=False)
"""The head is another matrix than the embedding: a step reads as much as before."""
ZEROED = ("o_proj.weight", "down_proj.weight")
ROW_STD = 0.04
GAIN = 2.0
"""Of the head. A token of the next place has a logit of 46, and of the others one in a million has 9."""


def write_walking_model(folder: Path, shape: Shape = WALKING) -> Path:
    """Write the checkpoint; return its folder."""
    return write_model(folder, shape, make_walk)


def make_walk(weights: dict[str, Tensor]) -> None:
    """Change random weights to those that walk round the cycles of `texts.py`."""
    for name, weight in weights.items():
        if name.endswith(ZEROED):
            weight.zero_()
    embedding, head = weights["model.embed_tokens.weight"], weights["lm_head.weight"].zero_()
    for place, following in list_steps():
        row = torch.empty(embedding.shape[1], dtype=embedding.dtype).normal_(std=ROW_STD)
        embedding[place.start : place.stop] = row
        head[following.start : following.stop] = GAIN * row
