"""`python -m benchmarks.quality`: what rounding a model's numbers costs; a table, then one JSON line.

The shipped model reads held-out generated documents. Each format is compared with float32, token by token:
the perplexity, the mean KL divergence of its distributions from float32's, and how often both think the same
token the likeliest. A quantised checkpoint is compared with its own weights, widened and served in float32:
so the figures are what serving it adds, not what its author lost.
"""

import argparse
import json
import math
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from millrace_kernels.linear.format import Format
from millrace_kernels.native.program import Sizes
from millrace_kernels.native.selection import CHOICES, select_cpu_path
from millrace_kernels.native.weights.packing import NativePacker
from millrace_kernels.paged_attention.cache import BLOCK_SIZE, KvFormat
from millrace_kernels.tensor_packer import TensorPacker
from millrace_runtime.execution.applied_plan import Spans
from millrace_runtime.execution.kv_cache import allocate_cache
from millrace_runtime.execution.loading import find_model, read_config
from millrace_runtime.execution.model_runner import Runner, TensorRunner
from millrace_runtime.execution.native_runner import NativeRunner
from millrace_runtime.execution.slots import SlotTable
from millrace_runtime.execution.weights.checkpoint import CheckpointWeights
from millrace_runtime.execution.weights.safetensors_files import Reader
from millrace_runtime.protocol.step import KvGroup, Limits
from stories_training.evaluate import NUM_DOCUMENTS
from stories_training.generator import HELD_OUT_SEED, generate_document
from stories_training.tokens import encode_document
from stories_training.train import FOLDER
from testing.checkpoints.quantized import (
    Form,
    awq,
    compressed_int4,
    compressed_int8,
    fp8_blocks,
    fp8_channels,
    write_quantized,
)

CPU = torch.device("cpu")


class Kind(NamedTuple):
    """How the model is read."""

    dtype: torch.dtype
    """Of activations, and of weights and KV that are not rounded."""
    weights: Format = Format.DENSE
    kv: KvFormat = KvFormat.MODEL


KINDS = {
    "float32": Kind(torch.float32),
    "float32, KV Int8": Kind(torch.float32, kv=KvFormat.INT8),
    "bfloat16": Kind(torch.bfloat16),
    "KV Int8": Kind(torch.bfloat16, kv=KvFormat.INT8),
    "Int8": Kind(torch.bfloat16, Format.INT8),
    "Int4": Kind(torch.bfloat16, Format.INT4),
}
"""As `--dtype`, `--weights` and `--kv-cache` serve this bfloat16 checkpoint."""
PUBLISHED: dict[str, Form] = {
    "FP8 in blocks": fp8_blocks(),
    "FP8 of channels": fp8_channels(),
    "INT8": compressed_int8(),
    "INT4 in 128s": compressed_int4(128),
    "AWQ in 128s": awq(128),
}
"""Checkpoints of the shipped model as they are published, rounded to the nearest."""


class Reading:
    """The shipped model in one format; it reads documents side by side, a token of each in a step."""

    def __init__(self, kind: Kind, path: str, texts: list[list[int]], folder: Path = FOLDER) -> None:
        dtype, form, kv = kind
        num_blocks = -(-max(map(len, texts)) // BLOCK_SIZE)
        length, count = num_blocks * BLOCK_SIZE, len(texts)
        architecture = find_model(folder, read_config(folder))
        library = select_cpu_path(path).library
        packer = NativePacker(dtype, form) if library else TensorPacker(dtype, CPU, form)
        weights = CheckpointWeights(Reader(folder), packer, architecture.quantization)
        model = architecture.build(weights, length)
        caches = allocate_cache(architecture, [count * num_blocks], dtype, CPU, kv)
        group = KvGroup(count * num_blocks)
        limits = Limits((group,), BLOCK_SIZE, count, 1, length, architecture.vocabulary_size, count)
        self.slots = SlotTable(limits, CPU)
        for slot, ids in enumerate(texts):
            self.slots.tokens[slot, : len(ids)] = torch.tensor(ids)
            blocks = torch.arange(slot * num_blocks, (slot + 1) * num_blocks)
            self.slots.blocks[0, slot, :num_blocks] = blocks
        sizes = Sizes(count, count, len(os.sched_getaffinity(0)))
        self.runner: Runner = (
            NativeRunner(library, model, dtype, sizes) if library else TensorRunner(model, CPU)
        )
        self.runner.set_caches(caches)

    def read(self, position: int, chosen: list[int]) -> Tensor:
        """Return the logits after the token at `position` of the chosen documents, until the next call."""
        begins = np.full(len(chosen), position)
        spans = Spans(np.array(chosen), begins, begins + 1)
        logits = self.runner.run(spans, range(len(chosen)), self.slots).logits
        assert logits is not None
        return logits


@dataclass
class Score:
    """Sums over tokens."""

    count: int = 0
    surprise: float = 0.0
    divergence: float = 0.0
    agreed: int = 0

    def add(self, logits: Tensor, exact: Tensor, targets: Tensor) -> None:
        """Count the logits before each target, beside float32's."""
        mine, theirs = logits.log_softmax(-1), exact.log_softmax(-1)
        self.count += targets.shape[0]
        self.surprise += functional.nll_loss(mine, targets, reduction="sum").item()
        self.divergence += functional.kl_div(mine, theirs, reduction="sum", log_target=True).item()
        self.agreed += int((mine.argmax(-1) == theirs.argmax(-1)).sum())

    def figures(self) -> dict[str, float]:
        """Per token."""
        return {
            "perplexity": round(math.exp(self.surprise / self.count), 4),
            "kl": round(self.divergence / self.count, 6),
            "same_first": round(self.agreed / self.count, 4),
        }


def read_documents(count: int) -> list[list[int]]:
    """Return the tokens of held-out documents."""
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    seeds = range(HELD_OUT_SEED, HELD_OUT_SEED + count)
    return [encode_document(tokenizer, generate_document(seed)) for seed in seeds]


def measure(texts: list[list[int]], path: str) -> dict[str, dict[str, float]]:
    """Return every format's figures."""
    readings = {name: Reading(kind, path, texts) for name, kind in KINDS.items()}
    return compare(texts, readings, "float32")


def measure_published(texts: list[list[int]], path: str) -> dict[str, dict[str, float]]:
    """Return the figures of quantised checkpoints, each over its own weights in float32."""
    found = {}
    for name, form in PUBLISHED.items():
        with tempfile.TemporaryDirectory() as place:
            folder = write_quantized(FOLDER, Path(place), form)
            readings = {
                name: Reading(Kind(torch.bfloat16), path, texts, folder),
                "twin": Reading(Kind(torch.float32), path, texts, folder / "twin"),
            }
            found[name] = compare(texts, readings, "twin")[name]
    return found


@torch.inference_mode()
def compare(texts: list[list[int]], readings: dict[str, Reading], exact: str) -> dict[str, dict[str, float]]:
    """Return the figures of each reading, compared with one of them."""
    scores = {name: Score() for name in readings}
    for position in range(max(map(len, texts)) - 1):
        chosen = [slot for slot, ids in enumerate(texts) if len(ids) > position + 1]
        targets = torch.tensor([texts[slot][position + 1] for slot in chosen])
        logits = {name: reading.read(position, chosen) for name, reading in readings.items()}
        for name, score in scores.items():
            score.add(logits[name], logits[exact], targets)
    return {name: score.figures() for name, score in scores.items()}


def main(argv: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=__doc__)
    parser.add_argument("--documents", type=int, default=NUM_DOCUMENTS, help="(default: %(default)s)")
    parser.add_argument("--path", choices=CHOICES, default="auto", help="what computes (default: auto)")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    texts = read_documents(arguments.documents)
    figures = measure(texts, arguments.path) | measure_published(texts, arguments.path)
    print(f"{'numbers':18}{'perplexity':>12}{'KL':>12}{'same first':>12}")
    for name, row in figures.items():
        print(f"{name:18}{row['perplexity']:12.4f}{row['kl']:12.6f}{row['same_first']:12.4f}")
    print(json.dumps({"documents": arguments.documents, **figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
