"""PromQL over the names in `contract`: a few questions for all services of one scrape interval. Pure.

There are three questions, which succeed or fail separately: the replicas' state and steps, their load, and
their latencies. An answer covers all services at once: with a query for each service, queries were most of
the operator's work. Each series has its signal's name as a label.

No query needs a label that only some scrape configurations add. A replica's series are found by its pod's
name, which Kubernetes derives from its Deployment's. So other pods with the same metric names are left out,
and a replica that is gone still counts in the windows in which it served.

Two jobs, or two Prometheus servers behind one address, may scrape the same pod. Their series say the same, so
a query takes only the largest before it sums.
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
"""A replica's pod: service, revision, template's hash and five random characters. Kubernetes cuts the part
before those five to 58 characters, so with a long service's name the hashes are shorter or absent."""
MAX_NAMESPACES: Final = 50
"""A question with more names none of them: it would become longer than what the names save."""
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
SPARED: Final = {
    "step_looked_up": contract.METRIC_PREFIX_QUERIES,
    "step_found": contract.METRIC_PREFIX_HITS,
    "step_drafted": contract.METRIC_DRAFTED,
    "step_accepted": contract.METRIC_ACCEPTED,
}
"""Counters of spared work. Replicas of earlier versions have none: there they count as zero."""
ANSWER_LENGTHS: Final = "answer lengths"
"""The signal with the answers' lengths by bucket; the label `le` is beside it."""


@dataclass(frozen=True)
class Scope:
    """The series of a question."""

    namespaces: tuple[str, ...] = ()
    """The namespaces of the services; none means all."""
    matchers: str = ""
    """More label matchers in PromQL, such as `cluster="eu"` if one store has several clusters."""

    def select(self, metric: str, *others: str) -> str:
        """Return the selector of a replica's metric."""
        return self._select(metric, f'pod=~"{REPLICA_NAME}"', *self._match("namespace"), *others)

    def select_arrivals(self) -> str:
        """Return the selector of the gateway's arrivals.

        It leaves out series whose labels a scrape has renamed: any pod may export them, about any service.
        """
        return self._select(contract.METRIC_GATEWAY_ARRIVALS, *self._match("namespace"))

    def _match(self, label: str) -> tuple[str, ...]:
        named = self.namespaces if len(self.namespaces) <= MAX_NAMESPACES else ()
        return (f'{label}=~"{"|".join(sorted(named))}"',) if named else ()

    def _select(self, metric: str, *matchers: str) -> str:
        return f"{metric}{{{','.join((*matchers, self.matchers) if self.matchers else matchers)}}}"


@dataclass(frozen=True)
class Question:
    """One instant query: an expression for each of its signals, by name."""

    signals: Mapping[str, str]

    @property
    def text(self) -> str:
        """The query."""
        return " or ".join(
            f'label_replace({expression}, "{LABEL_SIGNAL}", "{name}", "", "")'
            for name, expression in self.signals.items()
        )


def build_questions(objectives: Iterable[Objective], windows: Windows, scope: Scope) -> list[Question]:
    """Return the questions: the replicas' state and steps, their load, and the objectives' latencies."""
    found = [
        build_state(windows, scope),
        build_load(windows, scope),
        _build_latencies(objectives, windows, scope),
    ]
    return [Question(signals) for signals in found if signals]


def build_state(windows: Windows, scope: Scope) -> dict[str, str]:
    """Return the signals of each replica: the newest values, and the means of its last steps.

    Prometheus ends every series of a target at the first scrape that fails. So the queries look back as long
    as a sample is fresh: one lost scrape must not look like a replica that is gone. `age` keeps the labels of
    its scrape: two sources with one pod would otherwise look like one source that scrapes twice as often.
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
        **{signal: f"({rate(name, '_total')} / {count})" for signal, name in SPARED.items()},
        "num_steps": f"({count} * {window_seconds:g})",
    }


def build_load(windows: Windows, scope: Scope) -> dict[str, str]:
    """Return the signals of each service's received requests and of their mean lengths."""
    rate = f"[{windows.rate:g}s]"
    return {
        **_received("", rate, scope),
        **_received("recent_", f"[{windows.recent:g}s]", scope),
        "prompt_tokens": _mean(scope, contract.METRIC_PROMPT_TOKENS, rate),
        "generation_tokens": _mean(scope, contract.METRIC_GENERATION_TOKENS, rate),
    }


def build_past(window_seconds: float, scope: Scope) -> dict[str, str]:
    """Return the signals of a past load, with the gateway's arrivals. Decisions have those from its
    stream.
    """
    windows = Windows(rate=window_seconds, recent=window_seconds, latency=window_seconds)
    once = f"max by (namespace, service, pod) (rate({scope.select_arrivals()}[{window_seconds:g}s]))"
    return {"arrivals": f"sum by (namespace, service) ({once})", **build_load(windows, scope)}


def _received(prefix: str, window: str, scope: Scope) -> dict[str, str]:
    """Return the requests a second that replicas received, and those refused for the client's fault.

    They are sums over the whole service: no other replica has had the requests of one that is gone.
    """
    faults = f'reason!~"{"|".join(contract.REJECTED_LOAD)}"'
    refused = _rate(scope, f"{contract.METRIC_REJECTED}_total", window, faults)
    return {
        f"{prefix}received": _whole(_once(_rate(scope, f"{contract.METRIC_RECEIVED}_total", window))),
        f"{prefix}refused": _whole(_once(refused, "reason")),
    }


def _build_latencies(objectives: Iterable[Objective], windows: Windows, scope: Scope) -> dict[str, str]:
    """Return each objective's percentile, and the requests at or under the bounds next to the targets.

    The lengths of answers are included only if an objective needs them.
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
    """Whether any objective depends on the distribution of the answers' lengths."""
    return any(objective.metric == "EndToEndLatency" for objective in objectives)


def name_buckets(metric: LatencyMetric) -> str:
    """Return the name of the signal with a metric's buckets; the label `le` is beside it."""
    return f"{metric} buckets"


def find_bounds(objective: Objective) -> tuple[float | None, float]:
    """Return the bounds next to a target: the one at or under it, or None, and the one at or over it."""
    bounds, target = BOUNDS[objective.metric], round(objective.target_seconds, 9)  # 0.1 * 3 is no 0.3
    under, over = bisect_right(bounds, target), bisect_left(bounds, target)
    return bounds[under - 1] if under else None, bounds[over] if over < len(bounds) else math.inf


def _write_bounds(bounds: Iterable[float]) -> list[str]:
    """Return regular expressions for the bounds in `le`: some stores write 1.0 as 1."""
    return [
        r"\\+Inf"
        if bound == math.inf
        else f"{bound:.9f}".rstrip("0").rstrip(".").replace(".", r"\\.") + r"(\\.0)?"
        for bound in sorted(bounds)
    ]


def _rate(scope: Scope, metric: str, window: str, *matchers: str) -> str:
    return f"rate({scope.select(metric, *matchers)}{window})"


def _once(expression: str, *kept: str) -> str:
    """Return one series for each pod and each value of `kept`, even if several sources scrape it."""
    return f"max by ({', '.join(('namespace', 'pod', *kept))}) ({expression})"


def _whole(expression: str, *kept: str) -> str:
    """Return the sums over the replicas of each service."""
    named = f'label_replace({expression}, "service", "$1$2$3", "pod", "{REPLICA_NAME}")'
    return f"sum by ({', '.join(('namespace', 'service', *kept))}) ({named})"


def _mean(scope: Scope, name: str, window: str) -> str:
    total, count = (_whole(_once(_rate(scope, name + part, window))) for part in ("_sum", "_count"))
    return f"({total} / {count})"
