"""A local cluster of the benchmark's own for each scrape interval, with Millrace and the HPA's adapter."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import yaml

from e2e.cluster.local_cluster import LocalCluster
from e2e.cluster.product import CHART, install_chart, wait_for_product
from e2e.external_metrics import read_prometheus, serving
from e2e.hpa import apply_adapter
from millrace_operator.autoscaler.signals.scrapes import fit_windows

NAMESPACE = "bench-scaling"


@contextmanager
def cluster_scraping(scrape_seconds: int, window_seconds: float) -> Iterator[LocalCluster]:
    """Run a cluster while entered, whose Prometheus scrapes at this interval.

    The operator has this scale-down window, and all else as it is shipped.
    """
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        cluster = LocalCluster(Path(folder), scrape_seconds=scrape_seconds)
        try:
            cluster.start()
            install_chart(
                cluster,
                f"scaling.tickSeconds={read_shipped_tick():g}",
                f"scaling.downWindowSeconds={window_seconds:g}",
            )
            wait_for_product(cluster, print)
            cluster.kubectl("create", "namespace", NAMESPACE)
            keys = cluster.layout.keys
            ask = partial(read_prometheus, cluster.ports.prometheus)
            with serving(ask, keys / "server.crt", keys / "server.key") as port:
                apply_adapter(cluster, port)
                yield cluster
        finally:
            cluster.stop()


def read_shipped_tick() -> float:
    """Return the seconds between two decisions as the chart has them; a local cluster's are fewer."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    return float(values["scaling"]["tickSeconds"])


def effective_window(asked_seconds: float, scrape_seconds: int) -> float:
    """Return the scale-down window that ours really has: it is never less than its rates look back."""
    return max(asked_seconds, fit_windows(scrape_seconds).rate)
