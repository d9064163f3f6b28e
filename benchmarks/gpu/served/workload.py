"""The streams of the part `replica`: a replica, an engine and transformers get as long prompts."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.served.checkpoint import LLAMA_8B_SERVED, TINY_SERVED
from benchmarks.gpu.serving import random_tokens


class Workload(NamedTuple):
    """The sizes of what is asked."""

    config: dict[str, Any]
    prompt: int
    """Tokens."""
    output: int
    streams: tuple[int, ...]
    """How many there are at the same time, ascending."""
    compared: int
    """How many where something else is measured, too."""
    rounds: int
    long_prompts: tuple[int, ...]
    """Whose first tokens are awaited."""
    new: int
    """Tokens of a prompt after a prefix that others have, too."""
    decoders: int
    """Streams that decode meanwhile."""
    endless: int
    """Tokens of streams that are cancelled: so many that none ends before."""
    drained: int
    """Tokens of streams that are in flight at SIGTERM."""
    stormed: int
    """Streams that are cancelled at the same time."""

    def draw_prompts(self, count: int, length: int, seed: int) -> list[list[int]]:
        """Return prompts that all differ, the same for each seed."""
        numbers = random_tokens(count * length, self.config["vocab_size"], seed)
        return [numbers[start : start + length] for start in range(0, count * length, length)]


REAL = Workload(LLAMA_8B_SERVED, 128, 256, (1, 8, 64, 256), 64, 3, (1024, 8192), 64, 8, 4000, 500, 64)
DRY = Workload(TINY_SERVED, 16, 12, (1, 4), 4, 1, (20, 60), 5, 2, 4000, 3000, 4)


def choose_workload(bench: Bench) -> Workload:
    """Return the sizes for a GPU, or tiny ones."""
    return bench.sized(REAL, DRY)


def checkpoint_of(bench: Bench) -> Path:
    """Return the folder of the model, which the first step writes."""
    return bench.shared / "model"


def keep_rate(bench: Bench, name: str, tokens_per_second: float) -> None:
    """Keep a rate for a later step of the part."""
    (bench.shared / f"{name}.rate").write_text(json.dumps(tokens_per_second))


def read_rate(bench: Bench, name: str) -> float | None:
    """Return a rate that an earlier step has kept, or None."""
    path = bench.shared / f"{name}.rate"
    return float(json.loads(path.read_text())) if path.exists() else None
