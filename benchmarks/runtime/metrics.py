"""What a server of ours counts."""

import urllib.request

from millrace_runtime import contract


def read_totals(base: str) -> dict[str, float]:
    """Return a server's metrics, each summed over its labels."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{base}{contract.PATH_METRICS}", timeout=10) as answer:
        return sum_series(answer.read().decode())


def sum_series(text: str) -> dict[str, float]:
    """Return the metrics of an exposition, each summed over its labels."""
    totals: dict[str, float] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            name = series.partition("{")[0]
            totals[name] = totals.get(name, 0.0) + float(value)
    return totals
