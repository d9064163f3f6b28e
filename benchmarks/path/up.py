"""`make up` of a stranger: a clone of what is committed, with caches of its own."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.path.footprint import measure_disk, settle_memory, watch_footprint
from e2e.cluster.memory import available_memory
from e2e.cluster.settings import REPOSITORY

CACHES = {
    "MILLRACE_CACHE": "parts",
    "GOCACHE": "go_builds",
    "GOMODCACHE": "go_modules",
    "PIP_CACHE_DIR": "pip_downloads",
}


@dataclass(frozen=True)
class Made:
    """What a `make` took."""

    seconds: float
    steps: dict[str, float]
    """Seconds of each step that it told of."""


class Clone:
    """A clone in a folder of its own; with `is_cold` caches there too, which begin empty."""

    def __init__(self, folder: Path, *, is_cold: bool) -> None:
        self.path = folder / "millrace"
        self.caches = (
            {variable: folder / "caches" / name for variable, name in CACHES.items()} if is_cold else {}
        )
        self._environment = strangers_environment() | {name: str(path) for name, path in self.caches.items()}
        subprocess.run(["git", "clone", "-q", REPOSITORY, self.path], check=True)

    @property
    def state(self) -> Path:
        """The clone's cluster."""
        return self.path / ".millrace"

    def make(self, target: str) -> Made:
        """Run make with the clone's caches, and show what it says. Raises CalledProcessError."""
        began = time.monotonic()
        command = ["make", target]
        with subprocess.Popen(
            command, cwd=self.path, env=self._environment, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            lines = [show(line) for line in process.stdout]
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)
        return Made(time.monotonic() - began, read_steps(lines))

    def measure_disks(self) -> dict[str, int]:
        """Return the bytes of each cache of its own, and of the environment."""
        found = {CACHES[variable]: measure_disk(path) for variable, path in self.caches.items()}
        return {**found, "environment": measure_disk(self.path / ".venv")}


def strangers_environment() -> dict[str, str]:
    """Return our environment without what a make that started us hands to every make below it."""
    handed = {"MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "ARGS"}
    return {name: value for name, value in os.environ.items() if name not in handed}


def show(line: str) -> str:
    """Print a line of make's at once, and return it."""
    sys.stdout.write(line)
    sys.stdout.flush()
    return line


def read_steps(lines: Iterable[str]) -> dict[str, float]:
    """Return the seconds of the steps that `make up` tells of, by their names."""
    steps: dict[str, float] = {}
    for line in lines:
        if found := re.fullmatch(r"(\w+): done in (\d+) s\s*", line):
            steps[found[1]] = float(found[2])
        if found := re.match(r"up in [\d.]+ s: (.*)", line):
            steps |= {
                name: float(seconds) for name, seconds in re.findall(r"([a-z ]+?) ([\d.]+) s", found[1])
            }
    return {name.strip(): seconds for name, seconds in steps.items()}


def time_ups(clone: Clone) -> dict[str, Any]:
    """Time the first `make up` and a second one after `make down`; the cluster runs afterwards."""
    with watch_footprint() as footprint:
        first = clone.make("up")
    clone.make("down")
    available = settle_memory()
    second = clone.make("up")
    return {
        "first_up_seconds": round(first.seconds, 1),
        "first_up_steps": first.steps,
        "first_up_download_bytes": footprint.downloaded,
        "first_up_memory_bytes": footprint.peak_memory,
        "first_up_disk_bytes": clone.measure_disks(),
        "second_up_seconds": round(second.seconds, 1),
        "second_up_steps": second.steps,
        "running_memory_bytes": available - available_memory(),
    }
