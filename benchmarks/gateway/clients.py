"""Builds and runs the clients and the stub replicas of `load/`, in Go."""

import json
import queue
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gateway.process import LOAD_CORE, Process, running

SOURCE = Path(__file__).parent / "load"


class LoadError(Exception):
    """The clients or the stub replicas can't run; the message says what to do."""


def build(folder: Path) -> Path:
    """Return the compiled program. Raises LoadError."""
    program = folder / "load"
    go = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if go is None:
        raise LoadError("the clients are written in Go: install it, from 1.25 on")
    done = subprocess.run(
        [go, "build", "-o", str(program), "."], cwd=SOURCE, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise LoadError(f"go build: {done.stderr.strip()}")
    return program


@dataclass(frozen=True)
class Target:
    """Where clients send requests, and what names the model there."""

    port: int
    model: str = "chat"
    address: str = "127.0.0.1"
    key: str = ""
    """The key that clients show; empty: none."""


@dataclass(frozen=True)
class Clients:
    """Runs measurements from the load's core."""

    program: Path
    log: Path

    def measure(self, kind: str, target: Target, **flags: object) -> dict[str, Any]:
        """Run one measurement to its end. Raises LoadError."""
        with self.begin(kind, target, **flags) as process:
            return self.read(process)

    @contextmanager
    def begin(self, kind: str, target: Target, **flags: object) -> Iterator[Process]:
        """Run a measurement while entered."""
        fixed = {"target": f"{target.address}:{target.port}", "model": target.model, "key": target.key}
        words = [f"-{name.replace('_', '-')}={value}" for name, value in (fixed | flags).items()]
        command = [str(self.program), kind, *words]
        with running(command, LOAD_CORE, self.log, is_first=True, is_piped=True) as process:
            yield process

    @staticmethod
    def read(process: Process) -> dict[str, Any]:
        """Return a measurement's result. Raises LoadError."""
        line = process.read_line()
        try:
            found: dict[str, Any] = json.loads(line)
        except ValueError as error:
            raise LoadError(f"the clients ended without a result: {line!r}") from error
        return found


class Replicas:
    """The stub replicas, in one process. `on_drained` gets the address of each that has drained."""

    def __init__(self, process: Process, on_drained: Callable[[str], None]) -> None:
        self._process = process
        self._on_drained = on_drained
        self._added: queue.SimpleQueue[str] = queue.SimpleQueue()

    def add(self, address: str) -> None:
        """Start a replica at `host:port`."""
        self._process.say(f"add {address}")
        if self._added.get(timeout=10) != address:
            raise LoadError(f"no stub replica can listen at {address}")

    def drain(self, address: str) -> None:
        """Have a replica refuse new requests, and close when its last one has ended."""
        self._process.say(f"drain {address}")

    def listen(self) -> None:
        """Read what the process says until it ends."""
        while line := self._process.read_line():
            word, _, address = line.partition(" ")
            if word == "drained":
                self._on_drained(address)
            else:
                self._added.put(address)


@contextmanager
def serve_replicas(
    program: Path, addresses: list[str], log: Path, on_drained: Callable[[str], None] = lambda _address: None
) -> Iterator[Replicas]:
    """Run stub replicas at these addresses while entered. Raises LoadError."""
    command = [str(program), "replica", "-listen", ",".join(addresses)]
    with running(command, LOAD_CORE, log, is_piped=True) as process:
        if process.read_line() != "ready":
            raise LoadError(f"the stub replicas can't listen at {addresses}: see {log}")
        replicas = Replicas(process, on_drained)
        threading.Thread(target=replicas.listen, daemon=True).start()
        yield replicas
