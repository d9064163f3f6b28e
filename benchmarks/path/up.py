"""`make up` of a stranger: a clone of what is committed, with caches of its own."""

import os
import subprocess
import time
from pathlib import Path
from typing import Any

from e2e.cluster.settings import REPOSITORY


class Clone:
    """A clone in a folder of its own; a home there too, where its caches begin empty."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.path = folder / "millrace"
        self.home.mkdir()
        subprocess.run(["git", "clone", "-q", REPOSITORY, self.path], check=True)

    @property
    def state(self) -> Path:
        """The clone's cluster."""
        return self.path / ".millrace"

    def make(self, target: str, *, is_cold: bool = False) -> float:
        """Run make and return its seconds; cold: with the clone's own, empty caches."""
        environment = dict(os.environ)
        if is_cold:
            folders = {"MILLRACE_CACHE": "millrace", "GOCACHE": "go-build", "GOMODCACHE": "go-mod"}
            environment |= {name: str(self.home / folder) for name, folder in folders.items()}
            environment["PIP_CACHE_DIR"] = str(self.home / "pip")
        began = time.monotonic()
        subprocess.run(["make", target], cwd=self.path, env=environment, check=True)
        return time.monotonic() - began


def time_ups(clone: Clone, *, is_cold: bool) -> dict[str, Any]:
    """Time the first `make up` and a second one after `make down`; the cluster runs afterwards."""
    first = clone.make("up", is_cold=is_cold)
    clone.make("down")
    second = clone.make("up")
    return {"first_up_seconds": round(first, 1) if is_cold else None, "second_up_seconds": round(second, 1)}
