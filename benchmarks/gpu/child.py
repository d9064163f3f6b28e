"""Runs one step, in a process of its own, and records each of its rows as it comes."""

import json
import sys
import time
import traceback
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.device import open_device
from benchmarks.gpu.triton_facts import read_kernels, read_tuned


class Job(NamedTuple):
    """A step to run."""

    module: str
    """The part's module, which has STEPS."""
    step: str
    is_dry_run: bool
    folder: Path
    """Where a step may leave files that are kept."""
    shared: Path
    """Where it may leave files for later steps of its part."""


def run_job(job: Job, record: Path) -> None:
    """Run the step. Each line of the record is a JSON object with a row, an error, or facts at the end."""
    with record.open("w", encoding="utf-8") as file:
        began = time.perf_counter()
        try:
            _run(job, file)
        except Exception:  # noqa: BLE001  it is recorded, and the next step runs
            _write(file, {"error": traceback.format_exc()})
            sys.exit(1)
        _write(file, {"seconds": round(time.perf_counter() - began, 2)})


def _run(job: Job, file: TextIO) -> None:
    bench = Bench(open_device(is_dry_run=job.is_dry_run), job.is_dry_run, job.folder, job.shared)
    step = import_module(job.module).STEPS[job.step]
    with torch.inference_mode():
        for row in step(bench):
            _write(file, {"row": row.to_json()})
        bench.device.synchronize()  # an error of the last kernel belongs to this step
    _write(file, {"tuned": read_tuned(), "kernels": read_kernels()})


def describe(path: Path, *, is_dry_run: bool) -> None:
    """Write down what the device is, for the head of each part's JSON."""
    import triton  # noqa: PLC0415  only its version

    found: dict[str, Any] = open_device(is_dry_run=is_dry_run).describe()
    versions = {
        "torch": str(torch.__version__),
        "triton": triton.__version__,
        "python": sys.version.split()[0],
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    }
    path.write_text(json.dumps(found | versions))


def _write(file: TextIO, line: Mapping[str, Any]) -> None:
    file.write(json.dumps(line) + "\n")
    file.flush()
