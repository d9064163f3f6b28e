"""An operator's process: what it says of itself, and what it costs."""

import math
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from prometheus_client.parser import text_string_to_metric_families

from e2e.cluster.local_cluster import LocalCluster
from e2e.cluster.settings import free_ports

NAMESPACE = "bench-system"
"""Where the Lease is."""
END_SECONDS = 30.0
TICKS = os.sysconf("SC_CLK_TCK")


class Operator:
    """One replica, run as it is installed but for its budget of writes."""

    def __init__(
        self, cluster: LocalCluster, log: TextIO, writes_per_second: float, log_level: str = "INFO"
    ) -> None:
        self.log = Path(log.name)
        self.port = free_ports().prometheus
        self.began = time.monotonic()
        words = [str(Path(sys.executable).with_name("millrace")), "operator", "--namespace", NAMESPACE]
        words += ["--port", str(self.port), "--writes-per-second", str(writes_per_second)]
        words += ["--prometheus-url", "http://127.0.0.1:9", "--log-level", log_level]
        environment = {
            **os.environ,
            "KUBECONFIG": str(cluster.kubeconfig),
            "MILLRACE_BIND_ADDRESS": "127.0.0.1",
        }
        self._process = subprocess.Popen(words, env=environment, stdout=log, stderr=log)

    @property
    def cpu_seconds(self) -> float:
        """CPU time since it began, of all its threads."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    @property
    def rss_mb(self) -> float:
        """Memory that it holds now, in 10⁶ bytes."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        kib = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
        return kib * 1024 / 1e6

    @property
    def is_leader(self) -> bool:
        """Whether it says that it leads."""
        return self._read("leader_election_master_status") == 1

    @property
    def is_up(self) -> bool:
        """Whether it answers."""
        return not math.isnan(self._read("relist_total"))

    @property
    def num_reconciles(self) -> int:
        """Reconciles since it began."""
        return self._count("controller_runtime_reconcile_total")

    def count_reconciles(self, service: str) -> int:
        """Return the reconciles of one service, which an operator logs at the level DEBUG."""
        return self.log.read_text().count(f"{service}: reconciled in ")

    @property
    def num_waiting(self) -> int:
        """Services that wait for a reconcile."""
        return self._count("workqueue_depth")

    def _count(self, name: str) -> int:
        found = self._read(name)
        return 0 if math.isnan(found) else round(found)

    def _read(self, name: str) -> float:
        """Return the sum of a metric's series; not a number while nothing answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as response:
                text = response.read().decode()
        except (urllib.error.URLError, OSError):
            return math.nan
        samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
        return sum(sample.value for sample in samples if sample.name == name)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it, and wait until it has ended."""
        self._process.send_signal(number)
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def operating(
    cluster: LocalCluster, folder: Path, writes_per_second: float, log_level: str = "INFO"
) -> Iterator[Operator]:
    """Run an operator while entered."""
    with (folder / f"operator-{time.monotonic_ns()}.log").open("w") as log:
        operator = Operator(cluster, log, writes_per_second, log_level)
        try:
            yield operator
        finally:
            operator.end()
