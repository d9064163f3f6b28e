"""Reads Prometheus: PromQL over the names in `contract`, answers to `Signals`.

The only module here with I/O. A query that fails, times out or answers NaN leaves its signal unknown,
with the reason; nothing is ever read as zero because it is absent.
"""

import asyncio
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import aiohttp

from millrace_operator.autoscale.observation import Latency, Signals, StepMoments
from millrace_operator.autoscale.policy import LatencyMetric, Objective
from millrace_runtime import contract

LATENCY_METRICS: dict[LatencyMetric, str] = {
    "TimeToFirstToken": contract.METRIC_TTFT,
    "TimePerOutputToken": contract.METRIC_TPOT,
}


@dataclass(frozen=True)
class Windows:
    """How far back queries look, in seconds; at least four scrape intervals each."""

    rate: float = 60.0
    recent: float = 20.0
    latency: float = 60.0
    max_age: float = 15.0
    """Older samples are those of something gone: three scrape intervals."""
    timeout: float = 2.0


class SignalError(Exception):
    """A query without a usable answer; the text is the reason."""


class Sample(NamedTuple):
    """One series of an instant query."""

    labels: dict[str, str]
    value: float


async def observe_signals(  # noqa: PLR0917  the settled interface
    session: aiohttp.ClientSession,
    prometheus_url: str,
    namespace: str,
    service: str,
    pods: frozenset[str],
    now: float,
    *,
    objectives: tuple[Objective, ...] = (),
    windows: Windows = Windows(),
) -> Signals:
    """What Prometheus knows of a service's pods at `now` (Unix seconds).

    `pods` are those that exist in the API: series of others are ignored. `ready_replicas` is the number
    that report; a caller who knows readiness replaces it.
    """
    queries = build_queries(namespace, service, windows, objectives)
    answers = await asyncio.gather(
        *(_query(session, prometheus_url, text, now, windows.timeout) for text in queries.values()),
        return_exceptions=True,
    )
    return read_answers(dict(zip(queries, answers, strict=True)), pods, objectives, windows, now)


def build_queries(
    namespace: str, service: str, windows: Windows, objectives: Iterable[Objective]
) -> dict[str, str]:
    """PromQL by signal name."""
    chosen = f'{{namespace="{namespace}",service="{service}"}}'
    step_window, rate_window = f"[{windows.recent:g}s]", f"[{windows.rate:g}s]"
    success = contract.METRIC_REQUEST_SUCCESS + "_total" + chosen
    running, waiting = contract.METRIC_RUNNING + chosen, contract.METRIC_WAITING + chosen
    queries = {
        "age": f"timestamp({running})",
        "running": f"sum by (pod) ({running})",
        "waiting": f"sum by (pod) ({waiting})",
        "kv_usage": f"max by (pod) ({contract.METRIC_KV_USAGE}{chosen})",
        "cold_start": f"sum by (pod) ({contract.METRIC_STARTUP}{chosen})",
        "arrivals": _arrivals(namespace, service, rate_window),
        "recent_arrivals": _arrivals(namespace, service, step_window),
        "finished": f"sum by (pod) (rate({success}{rate_window}))",
        "in_flight_change": f"sum by (pod) (deriv({running}{rate_window}) + deriv({waiting}{rate_window}))",
        "prompt_tokens": _mean(contract.METRIC_PROMPT_TOKENS, chosen, rate_window, ""),
        "generation_tokens": _mean(contract.METRIC_GENERATION_TOKENS, chosen, rate_window, ""),
        "step_seconds": _mean(contract.METRIC_STEP_SECONDS, chosen, step_window, "pod"),
        "step_sequences": _mean(contract.METRIC_STEP_SEQUENCES, chosen, step_window, "pod"),
        "step_tokens": _mean(contract.METRIC_STEP_TOKENS, chosen, step_window, "pod"),
        "step_context": _mean(contract.METRIC_STEP_CONTEXT_TOKENS, chosen, step_window, "pod"),
        "num_steps": f"sum by (pod) (increase({contract.METRIC_STEP_SECONDS}_count{chosen}{step_window}))",
    }
    for objective in objectives:
        queries |= _latency_queries(objective, chosen, f"[{windows.latency:g}s]")
    return queries


def _arrivals(namespace: str, service: str, window: str) -> str:
    """The gateway's count, whichever way the scrape renamed its labels in a conflict."""
    name = contract.METRIC_GATEWAY_ARRIVALS
    labels = (
        ("namespace", "service"),
        ("exported_namespace", "service"),
        ("exported_namespace", "exported_service"),
    )
    rates = [f'sum(rate({name}{{{ns}="{namespace}",{svc}="{service}"}}{window}))' for ns, svc in labels]
    return " or ".join(rates)


def _mean(name: str, chosen: str, window: str, by: str) -> str:
    grouping = f" by ({by})" if by else ""
    total, count = f"{name}_sum{chosen}{window}", f"{name}_count{chosen}{window}"
    return f"sum{grouping} (rate({total})) / sum{grouping} (rate({count}))"


def _latency_queries(objective: Objective, chosen: str, window: str) -> dict[str, str]:
    name = LATENCY_METRICS[objective.metric]
    buckets = f"sum by (le) (rate({name}_bucket{chosen}{window}))"
    return {
        objective.name: f"histogram_quantile({objective.percentile / 100:g}, {buckets})",
        f"{objective.name} samples": f"sum(increase({name}_count{chosen}{window}))",
    }


async def _query(
    session: aiohttp.ClientSession, url: str, text: str, now: float, timeout: float
) -> list[Sample]:
    """Run an instant query; raises SignalError with a reason."""
    try:
        async with session.get(
            f"{url.rstrip('/')}/api/v1/query",
            params={"query": text, "time": f"{now:.3f}"},
            timeout=aiohttp.ClientTimeout(total=timeout),
        ) as response:
            body: dict[str, Any] = await response.json(content_type=None)
    except TimeoutError as error:
        raise SignalError(f"Prometheus did not answer within {timeout:g} s") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise SignalError(f"Prometheus at {url} did not answer: {error}") from error
    return parse_samples(body)


def parse_samples(body: Any) -> list[Sample]:
    """The finite samples of an instant query's answer; raises SignalError when it is none."""
    if not isinstance(body, dict) or body.get("status") != "success":
        reason = body.get("error", "no reason given") if isinstance(body, dict) else "not a JSON object"
        raise SignalError(f"Prometheus refused the query: {reason}")
    try:
        series = [Sample(item["metric"], float(item["value"][1])) for item in body["data"]["result"]]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise SignalError(f"Prometheus answered in an unknown shape: {error!r}") from error
    return [sample for sample in series if math.isfinite(sample.value)]


class _Reader:
    """Turns answers into values and keeps the reason for each that is unknown."""

    def __init__(self, answers: dict[str, list[Sample] | BaseException]) -> None:
        self._answers = answers
        self.rejected: dict[str, str] = {}

    def by_pod(self, name: str, pods: frozenset[str]) -> dict[str, float]:
        """Values of the given pods."""
        answer = self._answer(name)
        values = {sample.labels.get("pod", ""): sample.value for sample in answer}
        return {pod: value for pod, value in values.items() if pod in pods}

    def scalar(self, name: str) -> float | None:
        """The one value, or None."""
        answer = self._answer(name)
        return answer[0].value if answer else None

    def _answer(self, name: str) -> list[Sample]:
        answer = self._answers[name]
        if isinstance(answer, SignalError):
            self.rejected[name] = str(answer)
            return []
        if isinstance(answer, BaseException):
            raise answer
        if not answer:
            self.rejected[name] = "no samples"
        return answer


def read_answers(
    answers: dict[str, list[Sample] | BaseException],
    pods: frozenset[str],
    objectives: tuple[Objective, ...],
    windows: Windows,
    now: float,
) -> Signals:
    """Signals from the answers by name; pods with samples too old count as not reporting."""
    reader = _Reader(answers)
    ages = reader.by_pod("age", pods)
    fresh = frozenset(pod for pod, at in ages.items() if now - at <= windows.max_age)
    if len(fresh) < len(ages):
        reader.rejected["age"] = (
            f"{len(ages) - len(fresh)} replicas have samples older than {windows.max_age:g} s"
        )
    running, waiting = (reader.by_pod(name, fresh) for name in ("running", "waiting"))
    usage = reader.by_pod("kv_usage", fresh)
    return Signals(
        replicas=len(pods),
        ready_replicas=len(fresh),
        reporting_replicas=len(fresh),
        arrivals_per_second=_read_arrivals(reader, fresh),
        recent_arrivals_per_second=reader.scalar("recent_arrivals") if fresh else None,
        waiting=sum(waiting.values()) if waiting else None,
        running=sum(running.values()) if running else None,
        kv_usage=sum(usage.values()) / len(usage) if usage else None,
        prompt_tokens=reader.scalar("prompt_tokens"),
        generation_tokens=reader.scalar("generation_tokens"),
        cold_start_seconds=max(reader.by_pod("cold_start", fresh).values(), default=None),
        latencies=tuple(_read_latencies(reader, objectives)),
        steps=tuple(_read_steps(reader, fresh)),
        pods=fresh,
        rejected=reader.rejected,
    )


def _read_arrivals(reader: _Reader, fresh: frozenset[str]) -> float | None:
    """The gateway's rate, else what finished plus what piled up. An old answer is no answer."""
    if not fresh:
        return None
    arrivals = reader.scalar("arrivals")
    if arrivals is not None:
        return arrivals
    finished, change = reader.by_pod("finished", fresh), reader.by_pod("in_flight_change", fresh)
    if not change:
        return None
    return max(sum(finished.values()) + sum(change.values()), 0.0)


def _read_steps(reader: _Reader, fresh: frozenset[str]) -> Iterable[StepMoments]:
    names = ("step_seconds", "step_sequences", "step_tokens", "step_context", "num_steps")
    columns = [reader.by_pod(name, fresh) for name in names]
    for pod in sorted(set.intersection(*(set(column) for column in columns))):
        yield StepMoments(pod, *(column[pod] for column in columns))


def _read_latencies(reader: _Reader, objectives: Iterable[Objective]) -> Iterable[Latency]:
    for objective in objectives:
        seconds = reader.scalar(objective.name)
        count = reader.scalar(f"{objective.name} samples")
        if seconds is not None and count is not None:
            yield Latency(objective, seconds, count)
