"""Asks Prometheus. A question that fails leaves every signal unknown."""

from collections.abc import Iterable
from typing import Any

import aiohttp

from millrace_operator.autoscale.policy import Objective
from millrace_operator.autoscale.queries import build_query
from millrace_operator.autoscale.reading import Reading, Sample, SignalError, parse_samples, sort_samples
from millrace_operator.autoscale.windows import Windows

TIMEOUT_SECONDS = 2.0
"""Of one question."""


async def fetch_reading(
    session: aiohttp.ClientSession,
    prometheus_url: str,
    objectives: Iterable[Objective],
    now: float,
    windows: Windows,
    *,
    timeout: float = TIMEOUT_SECONDS,
) -> Reading:
    """Return what Prometheus knows of every service at `now` (seconds since 1970), or why it does not say.

    `objectives` are those of the services that the answer is for; equal percentiles of a metric are asked for
    once. `timeout` is in seconds.
    """
    query = build_query({objective.name: objective for objective in objectives}.values(), windows)
    try:
        samples = await _query(session, prometheus_url, query, now, timeout)
    except SignalError as error:
        return Reading(now, windows, failure=str(error))
    return Reading(now, windows, sort_samples(samples))


async def _query(
    session: aiohttp.ClientSession, url: str, text: str, now: float, timeout: float
) -> list[Sample]:
    """Run an instant query; raises SignalError. By POST: proxies limit how long an address may be."""
    try:
        async with session.post(
            f"{url.rstrip('/')}/api/v1/query",
            data={"query": text, "time": f"{now:.3f}"},
            timeout=aiohttp.ClientTimeout(total=timeout),
        ) as response:
            body: dict[str, Any] = await response.json(content_type=None)
    except TimeoutError as error:
        raise SignalError(f"Prometheus did not answer within {timeout:g} s") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise SignalError(f"Prometheus at {url} did not answer: {error}") from error
    return parse_samples(body)
