"""Checkpoints with random weights, as any engine reads them.

We write them ourselves: nothing is downloaded. Speed does not depend on what the weights say, and greedy text
of random weights is as long as any other.
"""

import json
from collections.abc import Callable
from pathlib import Path

import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import decoders, models, pre_tokenizers
from torch import Tensor

from benchmarks.runtime.models.shapes import MAX_LENGTH, Shape

END_OF_TEXT = "<|endoftext|>"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
_NO_TEXT = "øùúûüýþÿ"
"""How BPE writes the bytes from F8 to FF, which no UTF-8 has."""
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": MAX_LENGTH,
    "bos_token": END_OF_TEXT,
    "eos_token": END_OF_TEXT,
}


def write_model(
    folder: Path, shape: Shape, change: Callable[[dict[str, Tensor]], None] | None = None
) -> Path:
    """Write config, weights in bfloat16 and a tokenizer, as peers read them too; return the folder.

    The weights are random, unless `change` makes others of them.
    """
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(shape.render_config()))
    torch.manual_seed(1)
    weights = _draw_weights(shape)
    if change is not None:
        change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    build_tokenizer(shape.vocabulary).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG))
    return folder


def find_difference(folder: Path, shape: Shape) -> str | None:
    """Return in what a model's config is not that of a shape, or None."""
    found = json.loads((folder / "config.json").read_text())
    for name, wanted in shape.render_config().items():
        if found.get(name) != wanted:
            return f"{name} is {found.get(name)!r} instead of {wanted!r}"
    return None


def _draw_weights(shape: Shape) -> dict[str, Tensor]:
    return {weight.name: _draw(weight.size) for weight in shape.list_weights()}


def _draw(size: tuple[int, ...]) -> Tensor:
    """Return a random matrix, or the ones of a norm."""
    drawn = torch.ones(size, dtype=torch.bfloat16)
    return drawn.normal_(std=0.04) if len(size) > 1 else drawn


def build_tokenizer(size: int) -> tokenizers.Tokenizer:
    """An end, bytes, then filler words: each token has a text, and few of them end within a character.

    llama.cpp refuses a BPE without merges. So there are some, of bytes that no text has.
    """
    letters = [END_OF_TEXT, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = [(letter, letter) for letter in _NO_TEXT]
    known = [*letters, *(f"{letter}{letter}" for letter in _NO_TEXT)]
    pieces = [*known, *(f"filler{number}" for number in range(len(known), size))]
    tokenizer = tokenizers.Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer
