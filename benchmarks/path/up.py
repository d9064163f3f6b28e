"""`make up` of a stranger: a clone of what is committed, with caches of its own."""

import os
import subprocess
import time
from pathlib import Path
from typing import Any

from e2e.cluster.settings import REPOSITORY


class Clone:
    """A clone in a folder of its own; with `is_cold` a home there too, where its caches begin empty."""

    def __init__(self, folder: Path, *, is_cold: bool) -> None:
        self.path = folder / "millrace"
        self._environment = dict(os.environ)
        if is_cold:
            caches = {"MILLRACE_CACHE": "millrace", "GOCACHE": "go-build", "GOMODCACHE": "go-mod"}
            caches["PIP_CACHE_DIR"] = "pip"
            self._environment |= {name: str(folder / "home" / cache) for name, cache in caches.items()}
        subprocess.run(["git", "clone", "-q", REPOSITORY, self.path], check=True)

    @property
    def state(self) -> Path:
        """The clone's cluster."""
        return self.path / ".millrace"

    def make(self, target: str) -> float:
        """Run make with the clone's caches and return its seconds."""
        began = time.monotonic()
        subprocess.run(["make", target], cwd=self.path, env=self._environment, check=True)
        return time.monotonic() - began


def time_ups(clone: Clone) -> dict[str, Any]:
    """Time the first `make up` and a second one after `make down`; the cluster runs afterwards."""
    first = clone.make("up")
    clone.make("down")
    second = clone.make("up")
    return {"first_up_seconds": round(first, 1), "second_up_seconds": round(second, 1)}
