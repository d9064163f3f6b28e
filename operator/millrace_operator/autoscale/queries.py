"""PromQL over the names in `contract`: one query for all services of one scrape interval. Pure.

One answer for all, because a query each was what the operator did most: 20 a tick and
service held an idle operator at 1.0 % of a core, and Prometheus would see a thousand a second from a
hundred services. Each series is labelled with its signal's name.
"""

from collections.abc import Iterable
from typing import Final

from millrace_operator.autoscale.policy import LatencyMetric, Objective
from millrace_operator.autoscale.windows import Windows
from millrace_runtime import contract

LABEL_SIGNAL: Final = "signal"
LATENCY_METRICS: dict[LatencyMetric, str] = {
    "TimeToFirstToken": contract.METRIC_TTFT,
    "TimePerOutputToken": contract.METRIC_TPOT,
}
CHOSEN = '{service!=""}'
"""Replicas' series as our scrape labels them; other engines' under the same names are left out."""
CHOSEN_FAULTS = f'{{service!="",reason!~"{"|".join(contract.REJECTED_LOAD)}"}}'
"""Of the refusals those that are no load."""
BY_SERVICE = "namespace, service"
BY_POD = "namespace, service, pod"
BY_CLAIM = "namespace, service, exported_namespace, exported_service"
"""The gateway names services by the labels that a scrape may have moved out of its own labels' way."""


def build_query(objectives: Iterable[Objective], windows: Windows) -> str:
    """Return the query whose answer has every signal, with the percentiles that any service asks for."""
    signals = build_signals(windows)
    for objective in objectives:
        signals |= _latency(objective, f"[{windows.latency:g}s]")
    return " or ".join(
        f'label_replace({expression}, "{LABEL_SIGNAL}", "{name}", "", "")'
        for name, expression in signals.items()
    )


def build_signals(windows: Windows) -> dict[str, str]:
    """Return the PromQL of each signal but the objectives', by its name."""
    recent, rate = f"[{windows.recent:g}s]", f"[{windows.rate:g}s]"
    running, waiting = contract.METRIC_RUNNING + CHOSEN, contract.METRIC_WAITING + CHOSEN
    return {
        "age": f"max by ({BY_POD}) (timestamp({running}))",
        "running": f"sum by ({BY_POD}) ({running})",
        "waiting": f"sum by ({BY_POD}) ({waiting})",
        "kv_usage": f"max by ({BY_POD}) ({contract.METRIC_KV_USAGE}{CHOSEN})",
        "kv_tokens": f"min by ({BY_POD}) ({contract.METRIC_KV_TOKENS}{CHOSEN})",
        "max_sequences": f"min by ({BY_POD}) ({contract.METRIC_MAX_SEQUENCES}{CHOSEN})",
        **_arrivals("", rate),
        **_arrivals("recent_", recent),
        "prompt_tokens": _mean(contract.METRIC_PROMPT_TOKENS, rate, BY_SERVICE),
        "generation_tokens": _mean(contract.METRIC_GENERATION_TOKENS, rate, BY_SERVICE),
        "step_seconds": _mean(contract.METRIC_STEP_SECONDS, recent, BY_POD),
        "step_sequences": _mean(contract.METRIC_STEP_SEQUENCES, recent, BY_POD),
        "step_tokens": _mean(contract.METRIC_STEP_TOKENS, recent, BY_POD),
        "step_context": _mean(contract.METRIC_STEP_CONTEXT_TOKENS, recent, BY_POD),
        "num_steps": f"sum by ({BY_POD}) (increase({contract.METRIC_STEP_SECONDS}_count{CHOSEN}{recent}))",
    }


def _arrivals(prefix: str, window: str) -> dict[str, str]:
    """Return what the gateway took, and what replicas took and refused for the client's fault, a second.

    Of the whole service: in the window of a replica that is gone, others have not had its requests.
    """
    received = f"{contract.METRIC_RECEIVED}_total{CHOSEN}"
    refused = f"{contract.METRIC_REJECTED}_total{CHOSEN_FAULTS}"
    return {
        f"{prefix}arrivals": f"sum by ({BY_CLAIM}) (rate({contract.METRIC_GATEWAY_ARRIVALS}{window}))",
        f"{prefix}received": f"sum by ({BY_SERVICE}) (rate({received}{window}))",
        f"{prefix}refused": f"sum by ({BY_SERVICE}) (rate({refused}{window}))",
    }


def _mean(name: str, window: str, by: str) -> str:
    total, count = f"{name}_sum{CHOSEN}{window}", f"{name}_count{CHOSEN}{window}"
    return f"(sum by ({by}) (rate({total})) / sum by ({by}) (rate({count})))"


def _latency(objective: Objective, window: str) -> dict[str, str]:
    name = LATENCY_METRICS[objective.metric]
    buckets = f"sum by ({BY_SERVICE}, le) (rate({name}_bucket{CHOSEN}{window}))"
    return {
        objective.name: f"histogram_quantile({objective.percentile / 100:g}, {buckets})",
        f"{objective.name} samples": f"sum by ({BY_SERVICE}) (increase({name}_count{CHOSEN}{window}))",
    }
