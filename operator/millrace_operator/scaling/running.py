"""Requests in progress on each replica, for choosing which one goes."""

import aiohttp

from millrace_operator.autoscale.signals import SignalError, parse_samples
from millrace_runtime import contract

TIMEOUT = aiohttp.ClientTimeout(total=2)


async def observe_running(
    session: aiohttp.ClientSession, prometheus_url: str, namespace: str, service: str
) -> dict[str, float]:
    """Return requests in progress or waiting by pod; empty where nothing is known."""
    chosen = f'{{namespace="{namespace}",service="{service}"}}'
    query = f"sum by (pod) ({contract.METRIC_RUNNING}{chosen} + {contract.METRIC_WAITING}{chosen})"
    try:
        url = f"{prometheus_url.rstrip('/')}/api/v1/query"
        async with session.get(url, params={"query": query}, timeout=TIMEOUT) as response:
            samples = parse_samples(await response.json(content_type=None))
    except (SignalError, aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return {}
    return {sample.labels.get("pod", ""): sample.value for sample in samples}
