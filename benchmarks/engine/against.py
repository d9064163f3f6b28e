"""The same measurement of a former commit's engine, in turn with ours."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.runtime.former import ROOT, SOURCE_ROOTS, write_former

NUM_ROUNDS = 5
NAMES = ("step_microseconds_32", "step_microseconds_256")
COMMAND = (sys.executable, "-m", "benchmarks.engine", "--steps")


def measure_against(commit: str, num_steps: int) -> dict[str, float]:
    """Return the medians of ours over the commit's, round by round. The measuring is ours in both."""
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        former = write_former(commit, Path(folder))
        paths = [str(former.folder / name) for name in SOURCE_ROOTS if name]
        rounds = []
        for _ in range(NUM_ROUNDS):
            ours, theirs = (
                measure_apart(num_steps, environment)
                for environment in ({}, {"PYTHONPATH": os.pathsep.join(paths)})
            )
            rounds.append([ours[name] / theirs[name] for name in NAMES])
    medians = (statistics.median(ratios) for ratios in zip(*rounds, strict=True))
    return {f"{name}_over_itself": round(ratio, 3) for name, ratio in zip(NAMES, medians, strict=True)}


def measure_apart(num_steps: int, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the result of a process of its own: what is imported is by its environment."""
    done = subprocess.run(
        [*COMMAND, str(num_steps)],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
