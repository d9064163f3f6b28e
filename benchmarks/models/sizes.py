"""The predicted memory of a model, beside what the loader allocates. As the tests measure it."""

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.runtime.models.checkpoint import write_model as write_llama
from benchmarks.runtime.models.shapes import SMALL
from millrace_fit.settings import WEIGHTS
from testing.checkpoints.allocated import MODELS, allocate_sizes, predict_sizes
from testing.checkpoints.models import MEDIUM, write_model

Write = Callable[[Path], Path]
REAL = "135 million weights"


def measure_sizes() -> dict[str, float]:
    """Return, for each model and format, by how many percent weights or KV cache are off, at worst."""
    found: dict[str, float] = {}
    for name, write in _list_models():
        with tempfile.TemporaryDirectory(prefix="millrace-bench-") as text:
            folder = write(Path(text) / "model")
            found |= {f"{name}, {weights}": find_error_percent(folder, weights) for weights in WEIGHTS}
    return found


def find_error_percent(folder: Path, weights: str) -> float:
    """Return the larger of the two errors, as a share of what is allocated."""
    predicted, taken = predict_sizes(folder, weights), allocate_sizes(folder, weights)
    pairs = ((predicted.weights, taken.weights), (predicted.kv_cache, taken.kv_cache))
    return max(100 * abs(beforehand / really - 1) for beforehand, really in pairs)


def _list_models() -> Iterator[tuple[str, Write]]:
    for name, changes in MODELS.items():
        yield name, partial(_write_medium, changes=changes)
    yield REAL, partial(write_llama, shape=SMALL)


def _write_medium(folder: Path, changes: dict[str, Any]) -> Path:
    folder.mkdir()
    return write_model(folder, MEDIUM | changes)
