"""`python -m benchmarks.runtime.models FOLDER`: writes the model that all engines are compared at.

Models have Llama's shape and random weights, and are written by ourselves: nothing is downloaded. Speed does
not depend on what the weights say, and greedy text of random weights is as long as any other.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import decoders, models, pre_tokenizers
from torch import Tensor

BYTES_PER_VALUE = 2  # bfloat16, weights and KV cache

END_OF_TEXT = "<|endoftext|>"
MAX_LENGTH = 8192
_NO_TEXT = "øùúûüýþÿ"
"""How BPE writes the bytes from F8 to FF, which no UTF-8 has."""
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": MAX_LENGTH,
    "bos_token": END_OF_TEXT,
    "eos_token": END_OF_TEXT,
}


@dataclass(frozen=True)
class Shape:
    """A Llama with tied embeddings."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    mlp: int
    vocabulary: int

    @property
    def head_size(self) -> int:
        """Values in one head."""
        return self.hidden // self.heads

    @property
    def num_weights(self) -> int:
        """All weights; the embedding, which is the output layer too, once."""
        kv = self.kv_heads * self.head_size
        layer = 2 * self.hidden * (self.hidden + kv) + 3 * self.hidden * self.mlp + 2 * self.hidden
        return self.layers * layer + self.vocabulary * self.hidden + self.hidden

    def count_bytes_per_token(self, num_context_tokens: float) -> float:
        """Return the bytes that a decode step of one sequence must read: every weight and its KV."""
        kv = 2 * self.layers * self.kv_heads * self.head_size * num_context_tokens
        return BYTES_PER_VALUE * (self.num_weights + kv)


SMALL = Shape(hidden=576, layers=30, heads=9, kv_heads=3, mlp=1536, vocabulary=49152)
"""134.5 million weights: the shape that all engines are compared at."""
BILLION = Shape(hidden=2048, layers=16, heads=32, kv_heads=8, mlp=8192, vocabulary=32768)
"""1.04 billion weights: two gigabytes, which no cache holds."""


def write_model(folder: Path, shape: Shape) -> Path:
    """Write config, weights in bfloat16 and a tokenizer, as peers read them too; return the folder."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(_render_config(shape)))
    torch.manual_seed(1)
    save_file(_draw_weights(shape), folder / "model.safetensors", metadata={"format": "pt"})
    build_tokenizer(shape.vocabulary).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG))
    return folder


def find_difference(folder: Path, shape: Shape) -> str | None:
    """Return in what a model's config is not that of a shape, or None."""
    found = json.loads((folder / "config.json").read_text())
    for name, wanted in _render_config(shape).items():
        if found.get(name) != wanted:
            return f"{name} is {found.get(name)!r} instead of {wanted!r}"
    return None


def _render_config(shape: Shape) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "intermediate_size": shape.mlp,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": MAX_LENGTH,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 0,
    }


def _draw_weights(shape: Shape) -> dict[str, Tensor]:
    kv = shape.kv_heads * shape.head_size
    weights = {
        "model.embed_tokens.weight": _draw(shape.vocabulary, shape.hidden),
        "model.norm.weight": torch.ones(shape.hidden, dtype=torch.bfloat16),
    }
    for number in range(shape.layers):
        layer = f"model.layers.{number}"
        for name, rows in (("q", shape.hidden), ("k", kv), ("v", kv), ("o", shape.hidden)):
            weights[f"{layer}.self_attn.{name}_proj.weight"] = _draw(rows, shape.hidden)
        for name in ("gate", "up"):
            weights[f"{layer}.mlp.{name}_proj.weight"] = _draw(shape.mlp, shape.hidden)
        weights[f"{layer}.mlp.down_proj.weight"] = _draw(shape.hidden, shape.mlp)
        for name in ("input", "post_attention"):
            weights[f"{layer}.{name}_layernorm.weight"] = torch.ones(shape.hidden, dtype=torch.bfloat16)
    return weights


def _draw(rows: int, columns: int) -> Tensor:
    return torch.empty(rows, columns, dtype=torch.bfloat16).normal_(std=0.04)


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


def main(argv: list[str]) -> int:
    """Write the model."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.runtime.models", description=__doc__)
    parser.add_argument("folder", type=Path, help="a folder that is not there yet")
    folder = parser.parse_args(argv).folder
    if folder.exists():
        parser.error(f"{folder} exists: name another folder, or remove it")
    write_model(folder, SMALL)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
