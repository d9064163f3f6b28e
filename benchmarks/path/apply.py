"""From `kubectl apply` to the first token, and what lies between."""

import asyncio
import os
import statistics
import subprocess
import threading
import time
from typing import Any

from e2e.cluster.local_cluster import LocalCluster
from e2e.service import Service
from e2e.traffic import Load, Phase

RUNS = 3


class PodWatch:
    """When the service's first pod was seen, and when it was Ready, by `kubectl get --watch`."""

    def __init__(self, service: Service) -> None:
        self.seen: float | None = None
        self.ready: float | None = None
        path = '{.metadata.name}={.status.conditions[?(@.type=="Ready")].status}{"\\n"}'
        words = ["get", "pods", "-n", service.namespace, "-l", f"millrace.dev/service={service.name}", "-w"]
        self._process = subprocess.Popen(
            [service.cluster.layout.programs / "kubectl", *words, "-o", f"jsonpath={path}"],
            env={**os.environ, "KUBECONFIG": str(service.cluster.kubeconfig)},
            stdout=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.seen = self.seen or time.monotonic()
            if line.strip().endswith("=True"):
                self.ready = self.ready or time.monotonic()

    def close(self) -> None:
        """End the watch."""
        self._process.terminate()
        self._process.wait()


def time_apply(cluster: LocalCluster, namespace: str) -> dict[str, Any]:
    """Return medians over several services, applied one after the other, each deleted in between."""
    runs = [time_one(Service(cluster, namespace, f"apply-{number}")) for number in range(RUNS)]
    return {name: round(statistics.median(run[name] for run in runs), 2) for name in runs[0]}


def time_one(service: Service) -> dict[str, float]:
    """Apply one service with a whole core and ask until it answers."""
    service.spec["resources"]["limits"]["cpu"] = "2"
    watch = PodWatch(service)
    time.sleep(1.0)  # the watch is to stand before anything happens
    began = time.monotonic()
    service.apply()
    first_token = await_token(service, began)
    watch.close()
    assert watch.seen is not None
    assert watch.ready is not None
    service.delete()
    return {
        "apply_to_token_seconds": first_token,
        "apply_to_pod_seconds": watch.seen - began,
        "pod_to_ready_seconds": watch.ready - watch.seen,
        "ready_to_token_seconds": began + first_token - watch.ready,
    }


def await_token(service: Service, began: float) -> float:
    """Ask for a completion until one begins; return the seconds since `began` to its first token."""
    while True:
        load = Load(service.target(max_tokens=1))
        sent = time.monotonic()
        stream = asyncio.run(load.run([Phase(0.2, 20.0)]))[0]
        if stream.first_token is not None:
            return sent - began + stream.first_token
        assert time.monotonic() - began < 120, stream.error
        time.sleep(0.05)
