"""What a replica says of itself on its metrics."""

import urllib.request
from typing import Any

from millrace_runtime.contract import METRIC_RUNNING, PATH_METRICS, PORT_HTTP


def read_running(pod: dict[str, Any]) -> float:
    """Return the requests that a replica computes now."""
    url = f"http://{pod['status']['podIP']}:{PORT_HTTP}{PATH_METRICS}"
    with urllib.request.urlopen(url, timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(METRIC_RUNNING))
