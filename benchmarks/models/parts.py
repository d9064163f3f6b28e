"""The parts of the benchmark of models: each measures, and returns its figures."""

import argparse
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from benchmarks.models.interrupted import measure_kills
from benchmarks.models.on_nodes import measure_on_nodes
from benchmarks.models.report import summarise_kills, summarise_rounds, summarise_sizes, summarise_starts
from benchmarks.models.shards import write_model
from benchmarks.models.sizes import measure_sizes
from benchmarks.models.transfers import Rounds, measure
from benchmarks.runtime.progress import report


class Part(NamedTuple):
    """One part."""

    measure: Callable[[argparse.Namespace], dict[str, Any]]
    """Raises BenchmarkError."""
    flags: tuple[str, ...] = ()
    """Those by which its figures may differ."""


def measure_transfers(arguments: argparse.Namespace) -> Rounds:
    """Write a model, and let it be fetched. Raises BenchmarkError."""
    with tempfile.TemporaryDirectory(prefix="millrace-bench-", dir=arguments.folder) as text:
        folder = Path(text)
        model = write_model(folder / "model", int(arguments.gigabytes * 1e9))
        report(f"a model of {model.num_bytes / 1e9:.1f} GB is there")
        return measure(model, folder, arguments.megabytes_per_second * 1e6, arguments.rounds)


PARTS: Final[Mapping[str, Part]] = MappingProxyType(
    {
        "fit": Part(lambda _: summarise_sizes(measure_sizes())),
        "cluster": Part(lambda asked: summarise_starts(measure_on_nodes(asked.rounds)), ("rounds",)),
        "speed": Part(
            lambda asked: summarise_rounds(measure_transfers(asked)),
            ("gigabytes", "megabytes_per_second", "rounds"),
        ),
        "kills": Part(lambda asked: summarise_kills(measure_kills(asked.kills, asked.seed)), ("seed",)),
    }
)
"""In the order in which they run."""
