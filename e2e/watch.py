"""`kubectl get --watch` as people, tests and benchmarks read it: each line with its time."""

import os
import subprocess
import threading
import time
from types import TracebackType
from typing import NamedTuple, Self

from e2e.cluster.local_cluster import LocalCluster


class Line(NamedTuple):
    """One state of one object."""

    at: float
    """Of `time.monotonic`."""
    text: str


class Watch:
    """Follows objects from now on; the first lines are what is there already. Without a path: the table."""

    def __init__(self, cluster: LocalCluster, *words: str, jsonpath: str | None = None) -> None:
        self.lines: list[Line] = []
        self._since = time.monotonic()
        form = [] if jsonpath is None else ["-o", f'jsonpath={jsonpath}{{"\\n"}}']
        self._process = subprocess.Popen(
            [cluster.layout.programs / "kubectl", "get", *words, "-w", *form],
            env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig)},
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(Line(time.monotonic(), line.strip()))

    @property
    def quiet_seconds(self) -> float:
        """For how long nothing has been written."""
        return time.monotonic() - (self.lines[-1].at if self.lines else self._since)

    def first(self, ending: str = "") -> float | None:
        """Return when a line with this ending came first; None when none has come."""
        return next((line.at for line in self.lines if line.text.endswith(ending)), None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait()
        self._reader.join()
        if self._process.stdout:
            self._process.stdout.close()
