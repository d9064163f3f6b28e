"""PromQL over the names in `contract`: a few questions for all services of one scrape interval. Pure.

Three questions, each with a fate of its own: what replicas are and do now, what load they have, how late they
are. An answer speaks of all services at once, because a query each was what the operator did most. Each
series is labelled with its signal's name.

Nothing rests on a label that only some scrape configurations add. Replicas' series are found by their pods'
names, which Kubernetes makes of their Deployment's. So pods of others that use the same metric names are left
out, and a replica that is gone still counts in the windows in which it served.

Two jobs, or two Prometheis behind one address, may scrape the same pod. Each such series tells the same, so
only the largest is taken, before anything is summed.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from millrace_operator.autoscaler.decide.policy import LatencyMetric, Objective
from millrace_operator.autoscaler.signals.scrapes import Windows
from millrace_runtime import contract

LABEL_SIGNAL: Final = "signal"
REPLICA_NAME: Final = (
    "(.+)-[0-9a-f]{10}-[a-z0-9]+-[a-z0-9]{5}"
    "|(.{36,46})-[0-9a-f]{10}-[a-z0-9]{5,15}"
    "|(.{47,50})-[0-9a-f]{7,10}[a-z0-9]{5}"
)
"""A replica's pod: service, revision, template's hash and five random characters. Kubernetes cuts what stands
before those five to 58 characters, so with a long service's name the hashes are shorter or absent."""
MAX_NAMESPACES: Final = 50
"""More are not named in a question: it would be longer than what it spares."""
LATENCY_METRICS: dict[LatencyMetric, str] = {
    "TimeToFirstToken": contract.METRIC_TTFT,
    "TimePerOutputToken": contract.METRIC_TPOT,
    "EndToEndLatency": contract.METRIC_E2E,
    "QueueTime": contract.METRIC_QUEUE,
}
BOUNDS: dict[LatencyMetric, tuple[float, ...]] = {
    "TimeToFirstToken": contract.LATENCY_BUCKETS,
    "TimePerOutputToken": contract.TOKEN_BUCKETS,
    "EndToEndLatency": contract.REQUEST_BUCKETS,
    "QueueTime": contract.LATENCY_BUCKETS,
}
ANSWER_LENGTHS: Final = "answer lengths"
"""The signal that has the answers' lengths by bucket, the label `le` beside it."""


@dataclass(frozen=True)
class Scope:
    """Which series a question is about."""

    namespaces: tuple[str, ...] = ()
    """Those of the services asked for; none: all."""
    matchers: str = ""
    """More label matchers in PromQL, such as `cluster="eu"` where one store has several clusters."""

    def select(self, metric: str, *others: str) -> str:
        """Return the selector of a replica's metric."""
        return self._select(metric, f'pod=~"{REPLICA_NAME}"', *self._match("namespace"), *others)

    def select_arrivals(self) -> str:
        """Return the selector of the gateway's arrivals.

        Not of those whose labels a scrape has renamed: any pod may export them, about anybody's service.
        """
        return self._select(contract.METRIC_GATEWAY_ARRIVALS, *self._match("namespace"))

    def _match(self, label: str) -> tuple[str, ...]:
        named = self.namespaces if len(self.namespaces) <= MAX_NAMESPACES else ()
        return (f'{label}=~"{"|".join(sorted(named))}"',) if named else ()

    def _select(self, metric: str, *matchers: str) -> str:
        return f"{metric}{{{','.join((*matchers, self.matchers) if self.matchers else matchers)}}}"


@dataclass(frozen=True)
class Question:
    """One instant query, by the names of the signals that its answer has."""

    signals: Mapping[str, str]

    @property
    def text(self) -> str:
        """The query."""
        return " or ".join(
            f'label_replace({expression}, "{LABEL_SIGNAL}", "{name}", "", "")'
            for name, expression in self.signals.items()
        )


def build_questions(objectives: Iterable[Objective], windows: Windows, scope: Scope) -> list[Question]:
    """Return what to ask: replicas' state and steps, load, and of the latencies what the objectives need."""
    found = [
        build_state(windows, scope),
        build_load(windows, scope),
        _build_latencies(objectives, windows, scope),
    ]
    return [Question(signals) for signals in found if signals]


def build_state(windows: Windows, scope: Scope) -> dict[str, str]:
    """Return the signals of each replica: the newest values, and the means of its last steps.

    Prometheus ends every series of a target at the first scrape that fails. Looking back as far as a sample
    is fresh keeps one lost scrape from looking like a replica that is gone. `age` keeps the labels of its
    scrape: two that scrape one pod at times of their own would look like one that scrapes twice as often.
    """
    gauges = {
        "running": contract.METRIC_RUNNING,
        "waiting": contract.METRIC_WAITING,
        "kv_usage": contract.METRIC_KV_USAGE,
        "kv_tokens": contract.METRIC_KV_TOKENS,
        "max_sequences": contract.METRIC_MAX_SEQUENCES,
    }
    fresh = f"[{windows.max_age:g}s]"
    return {
        "age": f"timestamp({scope.select(contract.METRIC_RUNNING)})",
        **{
            name: f"max by (namespace, pod) (last_over_time({scope.select(metric)}{fresh}))"
            for name, metric in gauges.items()
        },
        **_steps(windows.recent, scope),
        "trial_steps": "max by (namespace, pod, tokens, context_tokens) "
        f"(last_over_time({scope.select(contract.METRIC_TRIAL_STEP)}{fresh}))",
    }


def _steps(window_seconds: float, scope: Scope) -> dict[str, str]:
    def rate(metric: str, part: str, *own: str) -> str:
        once = _once(_rate(scope, metric + part, f"[{window_seconds:g}s]"), *own)
        return f"sum by (namespace, pod) ({once})" if own else once

    names = {
        "step_sequences": contract.METRIC_STEP_SEQUENCES,
        "step_tokens": contract.METRIC_STEP_TOKENS,
        "step_context": contract.METRIC_STEP_CONTEXT_TOKENS,
    }
    seconds, count = (rate(contract.METRIC_STEP_SECONDS, part, "kind") for part in ("_sum", "_count"))
    return {
        "step_seconds": f"({seconds} / {count})",
        **{signal: f"({rate(name, '_sum')} / {rate(name, '_count')})" for signal, name in names.items()},
        "num_steps": f"({count} * {window_seconds:g})",
    }


def build_load(windows: Windows, scope: Scope) -> dict[str, str]:
    """Return the signals of what replicas got and of what a request is, of each service as a whole."""
    rate = f"[{windows.rate:g}s]"
    return {
        **_received("", rate, scope),
        **_received("recent_", f"[{windows.recent:g}s]", scope),
        "prompt_tokens": _mean(scope, contract.METRIC_PROMPT_TOKENS, rate),
        "generation_tokens": _mean(scope, contract.METRIC_GENERATION_TOKENS, rate),
    }


def build_past(window_seconds: float, scope: Scope) -> dict[str, str]:
    """Return the signals of a load that is over: what the gateway took, too. Decisions have that of it."""
    windows = Windows(rate=window_seconds, recent=window_seconds, latency=window_seconds)
    once = f"max by (namespace, service, pod) (rate({scope.select_arrivals()}[{window_seconds:g}s]))"
    return {"arrivals": f"sum by (namespace, service) ({once})", **build_load(windows, scope)}


def _received(prefix: str, window: str, scope: Scope) -> dict[str, str]:
    """Return what replicas took and refused for the client's fault, a second.

    Of the whole service: in the window of a replica that is gone, others have not had its requests.
    """
    faults = f'reason!~"{"|".join(contract.REJECTED_LOAD)}"'
    refused = _rate(scope, f"{contract.METRIC_REJECTED}_total", window, faults)
    return {
        f"{prefix}received": _whole(_once(_rate(scope, f"{contract.METRIC_RECEIVED}_total", window))),
        f"{prefix}refused": _whole(_once(refused, "reason")),
    }


def _build_latencies(objectives: Iterable[Objective], windows: Windows, scope: Scope) -> dict[str, str]:
    """Return each percentile that is asked for, and the requests at or under the bounds round the targets.

    The lengths of answers are asked for only where an objective rests on them.
    """
    asked, window, found = list(objectives), f"[{windows.latency:g}s]", {}
    for metric in sorted({objective.metric for objective in asked}):
        name = f"{LATENCY_METRICS[metric]}_bucket"
        edges = {edge for o in asked if o.metric == metric for edge in find_bounds(o) if edge is not None}
        chosen = f'le=~"{"|".join(_write_bounds({*edges, math.inf}))}"'
        found[name_buckets(metric)] = _whole(
            _once(f"increase({scope.select(name, chosen)}{window})", "le"), "le"
        )
        buckets = _whole(_once(_rate(scope, name, window), "le"), "le")
        for percentile in sorted({o.percentile for o in asked if o.metric == metric}):
            named = Objective(metric, percentile, 1.0).name
            found[named] = f"histogram_quantile({percentile / 100:g}, {buckets})"
    if needs_lengths(asked):
        lengths = scope.select(f"{contract.METRIC_GENERATION_TOKENS}_bucket")
        found[ANSWER_LENGTHS] = _whole(_once(f"increase({lengths}[{windows.rate:g}s])", "le"), "le")
    return found


def needs_lengths(objectives: Iterable[Objective]) -> bool:
    """Whether any objective rests on how long answers are, beyond their mean."""
    return any(objective.metric == "EndToEndLatency" for objective in objectives)


def name_buckets(metric: LatencyMetric) -> str:
    """Return the name of the signal that has a metric's buckets, the label `le` beside it."""
    return f"{metric} buckets"


def find_bounds(objective: Objective) -> tuple[float | None, float]:
    """Return the bucket's bounds next to a target: at or under it, None without one, and at or over it."""
    bounds, target = BOUNDS[objective.metric], round(objective.target_seconds, 9)  # 0.1 * 3 is no 0.3
    under, over = bisect_right(bounds, target), bisect_left(bounds, target)
    return bounds[under - 1] if under else None, bounds[over] if over < len(bounds) else math.inf


def _write_bounds(bounds: Iterable[float]) -> list[str]:
    """Return the bounds as a regular expression finds them in `le`: some stores write 1.0 as 1."""
    return [
        r"\\+Inf"
        if bound == math.inf
        else f"{bound:.9f}".rstrip("0").rstrip(".").replace(".", r"\\.") + r"(\\.0)?"
        for bound in sorted(bounds)
    ]


def _rate(scope: Scope, metric: str, window: str, *matchers: str) -> str:
    return f"rate({scope.select(metric, *matchers)}{window})"


def _once(expression: str, *kept: str) -> str:
    """Return one series for each pod, and each value of its own labels, however many scrape it."""
    return f"max by ({', '.join(('namespace', 'pod', *kept))}) ({expression})"


def _whole(expression: str, *kept: str) -> str:
    """Return the sums over the replicas of each service."""
    named = f'label_replace({expression}, "service", "$1$2$3", "pod", "{REPLICA_NAME}")'
    return f"sum by ({', '.join(('namespace', 'service', *kept))}) ({named})"


def _mean(scope: Scope, name: str, window: str) -> str:
    total, count = (_whole(_once(_rate(scope, name + part, window))) for part in ("_sum", "_count"))
    return f"({total} / {count})"
