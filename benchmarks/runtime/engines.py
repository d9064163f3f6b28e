"""Engines that run: servers, asked over HTTP, and libraries, asked through a driver's pipes."""

import contextlib
import json
import os
import select
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.runtime import client
from benchmarks.runtime.client import REQUEST_SECONDS, Dialect
from benchmarks.runtime.errors import EngineError
from benchmarks.runtime.figures import Manner, Row
from benchmarks.runtime.process import ProcessGroup
from benchmarks.runtime.workload import Case, Completion, read_completion
from development.ports import holding_port

START_SECONDS = 600.0
SETTLE_SECONDS = 0.3
"""An engine that goes on first does what fell due while it was stopped: timers, heartbeats."""
PORT = "{port}"
"""Stands in a server's command for the port that it is given."""


@dataclass(frozen=True)
class EngineSpec:
    """An engine that can be started."""

    name: str
    precision: str
    command: tuple[str, ...]
    """Of a server, with PORT in it; else of a driver."""
    environment: Mapping[str, str] = field(default_factory=dict)
    dialect: Dialect | None = None
    """A server's. None for a library."""
    ready_path: str = "/health"
    """A server's path that answers 200 once it is ready."""
    lacks: str = ""
    """What is not there that would make it faster."""

    @property
    def manner(self) -> Manner:
        """How it is asked."""
        return Manner.LIBRARY if self.dialect is None else Manner.HTTP

    @contextlib.contextmanager
    def start(self, logs: Path) -> Iterator["RunningEngine"]:
        """Start it, wait until it is ready, and end it afterwards. Raises EngineError."""
        log = logs / f"{self.name}-{self.precision}-{self.manner.name.lower()}.log"
        with holding_port() as port:
            command = [word.replace(PORT, str(port)) for word in self.command]
            try:
                group = ProcessGroup(command, self.environment, log, is_piped=self.dialect is None)
            except OSError as error:
                raise EngineError(f"{command[0]} can't be started: {error.strerror}") from error
            with group:
                yield self._attach(group, port)

    def _attach(self, group: ProcessGroup, port: int) -> "RunningEngine":
        if self.dialect is None:
            return LibraryEngine(self, group)
        return ServerEngine(self, group, f"http://127.0.0.1:{port}", self.dialect)


class RunningEngine:
    """What both kinds share."""

    version: str | None = None
    """Where the engine reports it."""

    def __init__(self, spec: EngineSpec, group: ProcessGroup) -> None:
        self.name, self.group = spec.name, group
        self._spec = spec

    def row(self, case: Case) -> Row:
        """Return where this engine's rate in a case belongs."""
        return Row(case.name, self._spec.precision, self.name, self._spec.manner)

    def complete(self, case: Case, prompts: list[list[int]]) -> list[Completion]:
        """Answer all prompts at once. Raises EngineError."""
        raise NotImplementedError

    def read_cpu_seconds(self) -> float:
        """Return the CPU time of all its processes so far."""
        return self.group.read_cpu_seconds()

    def pause(self) -> None:
        """Stop all its processes where they are."""
        self.group.pause()

    def resume(self) -> None:
        """Let them go on. Raises EngineError when it has ended."""
        self.group.check_alive()
        self.group.resume()
        time.sleep(SETTLE_SECONDS)


class ServerEngine(RunningEngine):
    """A server on a port of its own."""

    def __init__(self, spec: EngineSpec, group: ProcessGroup, base: str, dialect: Dialect) -> None:
        super().__init__(spec, group)
        self.base, self.dialect = base, dialect
        group.await_condition("ready", lambda: answers(base + spec.ready_path), START_SECONDS)

    def complete(self, case: Case, prompts: list[list[int]]) -> list[Completion]:
        """Answer all prompts at once. Raises EngineError."""
        return client.complete(self.base, self.dialect, prompts, case.num_output_tokens)


class LibraryEngine(RunningEngine):
    """A library behind a driver of ours."""

    def __init__(self, spec: EngineSpec, group: ProcessGroup) -> None:
        super().__init__(spec, group)
        self._unread = b""
        self.version = self._read(START_SECONDS)["ready"] or None

    def complete(self, case: Case, prompts: list[list[int]]) -> list[Completion]:
        """Answer all prompts at once. Raises EngineError."""
        question = {"prompts": prompts, "num_tokens": case.num_output_tokens}
        try:
            self.group.stdin.write(json.dumps(question).encode() + b"\n")
            self.group.stdin.flush()
        except OSError as error:
            raise self.group.failure("it no longer reads") from error
        return [read_completion(found) for found in self._read(REQUEST_SECONDS)["completions"]]

    def _read(self, seconds: float) -> dict[str, Any]:
        """Read one line of JSON; never wait for longer than `seconds`."""
        deadline, output = time.monotonic() + seconds, self.group.stdout.fileno()
        while b"\n" not in self._unread:
            if not select.select([output], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise self.group.failure(f"no answer after {seconds:g} s")
            if not (more := os.read(output, 1 << 16)):
                raise self.group.failure("it ended by itself")
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found


def answers(url: str) -> bool:
    """Whether a GET is answered with 200, asking no proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2.0) as response:
            return bool(response.status == 200)
    except OSError:
        return False
