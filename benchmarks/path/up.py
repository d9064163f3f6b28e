"""`make up` of a stranger: a clone of what is committed, with caches of its own."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.path.footprint import measure_disk, settle_memory, watch_footprint
from e2e.cluster.memory import available_memory
from e2e.cluster.settings import REPOSITORY
from e2e.cluster.sources import without_links

CACHES = {
    "MILLRACE_CACHE": "parts",
    "GOCACHE": "go_builds",
    "GOMODCACHE": "go_modules",
    "PIP_CACHE_DIR": "pip_downloads",
}

PIP_NETWORK = "CERT CLIENT_CERT CONFIG_FILE DEFAULT_TIMEOUT EXTRA_INDEX_URL INDEX_URL PROXY TRUSTED_HOST"
GO_NETWORK = "AUTH ENV INSECURE NOPROXY NOSUMCHECK NOSUMDB PRIVATE PROXY SUMDB VCS"
NETWORK = {f"PIP_{name}" for name in PIP_NETWORK.split()} | {f"GO{name}" for name in GO_NETWORK.split()}
"""How pip and Go reach their indexes from here. GOFLAGS is not among them: our builds drop it."""
HANDED_BY_MAKE = {"MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "ARGS"}


@dataclass(frozen=True)
class Made:
    """What a `make` took."""

    seconds: float
    steps: dict[str, float]
    """The seconds of each step that it reported."""


class Clone:
    """A clone in a folder of its own; with `is_cold` caches there too, which begin empty."""

    def __init__(self, folder: Path, *, is_cold: bool) -> None:
        self.path = folder / "millrace"
        self.caches = (
            {variable: folder / "caches" / name for variable, name in CACHES.items()} if is_cold else {}
        )
        self._environment = strangers_environment(os.environ) | {
            name: str(path) for name, path in self.caches.items()
        }
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


def strangers_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment as it is on another machine, but for its network and its caches' places.

    Nor has it what a make that started us hands to every make below it.
    """
    kept = {name: value for name, value in environ.items() if not is_ours(name)}
    return {**kept, "PATH": strangers_path(environ["PATH"])}


def is_ours(name: str) -> bool:
    """Whether a variable says how this machine is set up, or how we were started."""
    if name in NETWORK or name in CACHES:
        return False
    return name in HANDED_BY_MAKE or name.startswith(("GO", "PIP_", "KUBEBUILDER_"))


def strangers_path(path: str) -> str:
    """Return a PATH without our clusters' links, and without Go but where make or Python are beside it."""
    folders = without_links(path).split(os.pathsep)
    return os.pathsep.join(folder for folder in folders if not is_gos(Path(folder)))


def is_gos(folder: Path) -> bool:
    """Whether a folder has Go, and nothing else that `make up` needs."""
    return (folder / "go").exists() and not any((folder / name).exists() for name in ("make", "python3"))


def show(line: str) -> str:
    """Print a line of make's at once, and return it."""
    sys.stdout.write(line)
    sys.stdout.flush()
    return line


def read_steps(lines: Iterable[str]) -> dict[str, float]:
    """Return the seconds of the steps that `make up` reports, by their names."""
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
        **describe_first(first),
        "first_up_download_bytes": footprint.downloaded,
        "first_up_memory_bytes": footprint.peak_memory,
        "first_up_disk_bytes": clone.measure_disks(),
        "second_up_seconds": round(second.seconds, 1),
        "second_up_steps": second.steps,
        "running_memory_bytes": available - available_memory(),
    }


def describe_first(first: Made) -> dict[str, Any]:
    """Return what the first `make up` reports; Go is fetched where PATH has none that is new enough."""
    return {
        "first_up_seconds": round(first.seconds, 1),
        "first_up_steps": first.steps,
        "first_up_fetched_go": "go" in first.steps,
    }
