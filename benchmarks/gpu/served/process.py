"""`millrace serve` as a process, and what it says of itself."""

import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.gpu.served.counts import Counts, read_counts
from benchmarks.runtime.engines import answers
from benchmarks.runtime.ours import SERVE
from benchmarks.runtime.process import ProcessGroup
from development.ports import holding_port
from millrace_runtime import contract

READY_SECONDS = 90.0
IDLE_SECONDS = 10.0
"""How long a replica may take to give back what cancelled requests held."""
REST_SECONDS, REST_SHARE = 1.2, 0.05
"""A replica rests when it takes less of a CPU for longer than the pause between two recordings."""
REST_LIMIT_SECONDS = 30.0
DRAIN_SECONDS = 30.0


class Replica:
    """A replica that runs, or starts."""

    def __init__(self, group: ProcessGroup, base: str, model: str) -> None:
        self.group, self.base, self.model = group, base, model
        self.seen: list[Counts] = []
        """All counts that were read."""

    def await_ready(self) -> float:
        """Wait until it takes requests. Return the seconds since it was started. Raises EngineError."""
        self.group.await_condition("ready", lambda: answers(f"{self.base}/readyz"), READY_SECONDS)
        return time.perf_counter() - self.group.began

    def read_counts(self) -> Counts:
        """Return what it counts now."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(self.base + contract.PATH_METRICS, timeout=10.0) as response:
            self.seen.append(read_counts(response.read().decode()))
        return self.seen[-1]

    def await_running(self, num_sequences: int) -> None:
        """Wait until so many sequences run. Raises EngineError."""
        self.group.await_condition(
            f"running {num_sequences} sequences",
            lambda: self.read_counts().running >= num_sequences,
            IDLE_SECONDS,
        )

    def await_idle(self) -> float:
        """Wait until nothing runs, waits or holds a block. Return the seconds. Raises EngineError."""
        began = time.perf_counter()
        self.group.await_condition("idle", lambda: self.read_counts().is_idle, IDLE_SECONDS)
        return time.perf_counter() - began

    def await_rest(self) -> float:
        """Wait until it does nothing of its own. Return the seconds until it began to rest."""
        began = time.perf_counter()
        while time.perf_counter() - began < REST_LIMIT_SECONDS:
            since, before = time.perf_counter(), self.group.read_cpu_seconds()
            time.sleep(REST_SECONDS)
            if self.group.read_cpu_seconds() - before < REST_SHARE * REST_SECONDS:
                return since - began
        return time.perf_counter() - began

    def drain(self) -> int | None:
        """Ask it to end, and return its status, or None if it does not end."""
        return self.group.terminate(DRAIN_SECONDS)


@contextmanager
def start_replica(model: Path, device: str, options: tuple[str, ...], log: Path) -> Iterator[Replica]:
    """Start it on a free port, and end it afterwards."""
    with holding_port() as port:
        command = [*SERVE, "--model", str(model), "--device", device, "--host", "127.0.0.1"]
        command += ["--port", str(port), "--live-port", "0", *options]
        with ProcessGroup(command, {}, log, is_piped=False) as group:
            yield Replica(group, f"http://127.0.0.1:{port}", model.name)
