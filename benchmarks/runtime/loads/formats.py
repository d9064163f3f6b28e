"""Quantised checkpoints as they are published, beside our own rounding while loading, and beside peers.

All have the same weights before they are rounded, and are asked in the same rounds.
"""

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.runtime.engines import EngineSpec
from benchmarks.runtime.errors import EngineError
from benchmarks.runtime.figures import (
    OURS,
    OWN_ROUNDING,
    Manner,
    Rates,
    Row,
    compare_with_best,
    ratios,
    spread,
)
from benchmarks.runtime.models.checkpoint import TOKENIZER_FILES
from benchmarks.runtime.ours import our_server
from benchmarks.runtime.progress import report
from benchmarks.runtime.published import LOAD_SECONDS, name_over_own
from benchmarks.runtime.report import render_comparison, render_spread
from testing.checkpoints.quantized import Form, awq, compressed_int8, fp8_blocks, write_quantized

LOAD = (sys.executable, "-m", "benchmarks.runtime.drivers.load_time")
LOAD_TIMEOUT_SECONDS = 300


class Published(NamedTuple):
    """A form of checkpoint, and what it is compared with."""

    form: Form
    beside: str
    """The precision of the same width that we round to ourselves, and peers have files of."""
    cases: tuple[str, ...]


PUBLISHED: Mapping[str, Published] = {
    "awq": Published(awq(64), "int4", ("single", "c32")),  # the shape's width is no multiple of 128
    "w8a8": Published(compressed_int8(), "int8", ("c32",)),
    "fp8": Published(fp8_blocks(), "bf16", ("single",)),
}
"""By the names of figures."""


def write_published(name: str, model: Path, folder: Path) -> Path:
    """Quantise a model as it is published, and return its folder."""
    report(f"writing {name}")
    quantised = write_quantized(model, folder / name, PUBLISHED[name].form)
    shutil.rmtree(quantised / "twin")
    for file in TOKENIZER_FILES:
        shutil.copy(model / file, quantised)
    return quantised


def list_own_specs(name: str, plain: Path, quantised: Path) -> Iterator[EngineSpec]:
    """Yield our server of a published checkpoint, and that of the plain one rounded while it loads."""
    yield dataclasses.replace(our_server(quantised, "bf16"), precision=name)
    own = our_server(plain, PUBLISHED[name].beside)
    yield dataclasses.replace(own, precision=name, name=OWN_ROUNDING)


def render_over_own(name: str, rates: Rates) -> dict[str, Any]:
    """Return the figures over our own rounding, by their names."""
    found = {}
    for case in PUBLISHED[name].cases:
        ours, own = (rates.get(Row(case, name, engine, Manner.HTTP)) for engine in (OURS, OWN_ROUNDING))
        if ours is not None and own is not None:
            figure = name_over_own(name, PUBLISHED[name].beside, case)
            found[figure] = render_spread(spread(ratios(ours, own)))
    return found


def render_over_best(name: str, rates: Rates) -> dict[str, Any]:
    """Return the figures over the best peer, by their names."""
    compared = {case: compare_with_best(rates, case, name) for case in PUBLISHED[name].cases}
    return {
        f"{name}_{case}_over_best": render_comparison(found)
        for case, found in compared.items()
        if found is not None
    }


def time_loads(plain: Path, quantised: Mapping[str, Path], num_rounds: int) -> dict[str, Any]:
    """Return each format's seconds to load over those of bf16 in the same round. Raises EngineError."""
    seconds: dict[str, list[float]] = {name: [] for name in ("bf16", *quantised)}
    for number in range(-1, num_rounds):  # the first reads the files into memory
        for name, path in {"bf16": plain, **quantised}.items():
            took = time_load(path)
            if number >= 0:
                seconds[name].append(took)
                report(f"round {number + 1}: {name} loads in {took:.2f} s")
    return {
        LOAD_SECONDS.format(name): render_spread(spread(ratios(seconds[name], seconds["bf16"])))
        for name in quantised
    }


def time_load(model: Path) -> float:
    """Return the seconds that our engine takes to load a model. Raises EngineError."""
    command: Sequence[str] = (*LOAD, str(model))
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LOAD_TIMEOUT_SECONDS)
    if done.returncode:
        raise EngineError(f"{model} does not load: {done.stderr.strip().splitlines()[-1:]}")
    return float(json.loads(done.stdout)["seconds"])
