"""What the operator shows of each service at a scrape: its objectives, its replicas, what is decided.

Read from the cache, so every replica of the operator shows it, and nothing is missing while the leader
changes. What the autoscaler thinks is the leader's alone.
"""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from millrace_kubernetes.model_names import Standing
from millrace_operator.api.quantities import parse_number
from millrace_operator.api.types import Objective, ObjectiveMetric, ScalingMode, Spec
from millrace_operator.autoscaler.decide.decision import Decision
from millrace_operator.autoscaler.decide.memory import Memory
from millrace_operator.autoscaler.signals.observation import Signals
from millrace_operator.controller.cache import Cache
from millrace_operator.kube.kinds import Obj, ServiceKey
from millrace_operator.observed.pods import read_pod
from millrace_operator.status.cost import price_million_tokens
from millrace_runtime import contract

BOUNDS: Mapping[ObjectiveMetric, Sequence[float]] = {
    ObjectiveMetric.TIME_TO_FIRST_TOKEN: contract.LATENCY_BUCKETS,
    ObjectiveMetric.TIME_PER_OUTPUT_TOKEN: contract.TOKEN_BUCKETS,
    ObjectiveMetric.END_TO_END_LATENCY: contract.REQUEST_BUCKETS,
    ObjectiveMetric.QUEUE_TIME: contract.LATENCY_BUCKETS,
}
_OBJECTIVE = ("metric", "percentile")
_FAMILIES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "millrace_objective_target_seconds": ("Target of a latency objective.", _OBJECTIVE),
    "millrace_objective_error_budget_ratio": ("Part of the requests that may miss it.", _OBJECTIVE),
    "millrace_objective_edge_seconds": (
        "Bounds of the histogram's bucket that the target is in.",
        (*_OBJECTIVE, "side", "bucket"),
    ),
    "millrace_objective_infeasible": ("1: an idle replica misses it.", _OBJECTIVE),
    "millrace_min_replicas": ("Fewest replicas that the autoscaler may choose.", ()),
    "millrace_max_replicas": ("Most replicas that the autoscaler may choose.", ()),
    "millrace_desired_replicas": ("The count that the Deployments follow.", ()),
    "millrace_recommended_replicas": ("The count that the autoscaler decided last.", ()),
    "millrace_replicas": ("Pods that exist and do not end.", ()),
    "millrace_ready_replicas": ("Pods that answer requests.", ()),
    "millrace_failing_replicas": ("Pods that do not serve, by cause.", ("reason",)),
    "millrace_name_shadowed": ("1: its model name alone does not lead to it.", ()),
    "millrace_scaling_reason": ("1: why the count is what it is.", ("reason",)),
    "millrace_arrivals_per_second": ("Requests a second, as the autoscaler sees them.", ()),
    "millrace_forecast_arrivals_per_second": ("Requests a second, after a cold start.", ()),
    "millrace_planned_arrivals_per_second": ("Requests a second, planned for one replica.", ()),
    "millrace_cold_start_seconds": ("What nine of ten cold starts take at most.", ()),
    "millrace_step_model_seconds": ("Step time as fitted, by term.", ("term",)),
    "millrace_step_model_error_ratio": ("Mean relative error of the fit.", ()),
    "millrace_cost_per_hour": ("What the replicas that exist cost an hour.", ("currency",)),
    "millrace_saved_per_hour": ("How much more as many as at the peak of seven days cost.", ("currency",)),
    "millrace_cost_per_thousand_tokens": ("What a thousand generated tokens cost now.", ("currency",)),
}


class Thought(Protocol):
    """What the autoscaler decided last for a service, and what it knows then."""

    @property
    def decision(self) -> Decision:
        """The decision."""

    @property
    def signals(self) -> Signals:
        """What was seen before it."""

    @property
    def memory(self) -> Memory:
        """As it is after the decision."""


class ServiceCollector(Collector):
    """Every known service, read at each scrape; a deleted service's series end."""

    def __init__(self, cache: Cache, find_thought: Callable[[ServiceKey], Thought | None]) -> None:
        self._cache = cache
        self._find_thought = find_thought

    def collect(self) -> Iterable[Metric]:
        """Return all families, those without samples too."""
        families = {
            name: GaugeMetricFamily(name, text, labels=("namespace", "service", *labels))
            for name, (text, labels) in _FAMILIES.items()
        }
        for key in self._cache.service_keys():
            for name, labels, value in self._describe(key):
                families[name].add_metric([*key, *labels], value)
        return families.values()

    def _describe(self, key: ServiceKey) -> Iterator["Value"]:
        service = self._cache.service(key) or {}
        objectives: Sequence[Objective] = ()
        try:
            spec = self._cache.spec(key)
            objectives = spec.scaling.objectives
            yield from _describe_spec(spec)
        except ValueError:
            pass  # status says what is wrong with it
        yield "millrace_name_shadowed", (), float(self._cache.standing(key) is not Standing.HELD)
        yield from _describe_scaling(service.get("status", {}).get("scaling", {}))
        yield from _describe_pods(self._cache.pods(key))
        thought = self._find_thought(key)
        yield from _describe_cost(service.get("status", {}).get("cost", {}), thought)
        if thought is not None:
            yield from _describe_thought(thought, objectives)


Value = tuple[str, tuple[str, ...], float]
"""A metric's name, its labels after namespace and service, and its value."""


def find_bounds(metric: ObjectiveMetric, target_seconds: float) -> tuple[float | None, float]:
    """Return the largest bound at or under a target, None without one, and the smallest at or over it."""
    bounds, target = BOUNDS[metric], round(target_seconds, 9)  # 0.1 * 3 is no 0.3
    under, over = bisect_right(bounds, target), bisect_left(bounds, target)
    return bounds[under - 1] if under else None, bounds[over] if over < len(bounds) else math.inf


def _describe_spec(spec: Spec) -> Iterator[Value]:
    if spec.scaling.mode is not ScalingMode.EXTERNAL:
        yield "millrace_min_replicas", (), spec.scaling.min_replicas
        yield "millrace_max_replicas", (), spec.scaling.max_replicas
    for objective in spec.scaling.objectives:
        labels = _name(objective)
        yield "millrace_objective_target_seconds", labels, objective.target_seconds
        yield "millrace_objective_error_budget_ratio", labels, round(1 - objective.percentile / 100, 2)
        under, over = find_bounds(objective.metric, objective.target_seconds)
        if under is not None:
            yield "millrace_objective_edge_seconds", (*labels, "under", _write(under)), under
        yield "millrace_objective_edge_seconds", (*labels, "over", _write(over)), over


def _name(objective: Objective) -> tuple[str, str]:
    return objective.metric.value, str(objective.percentile)


def _write(bound: float) -> str:
    """Return a bound as a histogram's `le` has it."""
    return "+Inf" if bound == math.inf else repr(float(bound))


def _describe_scaling(scaling: Mapping[str, Any]) -> Iterator[Value]:
    if "desiredReplicas" in scaling:
        yield "millrace_desired_replicas", (), scaling["desiredReplicas"]
    if "reason" in scaling:
        yield "millrace_scaling_reason", (scaling["reason"],), 1


def _describe_pods(objects: Iterable[Obj]) -> Iterator[Value]:
    pods = [pod for pod in map(read_pod, objects) if pod.is_staying]
    yield "millrace_replicas", (), len(pods)
    yield "millrace_ready_replicas", (), sum(pod.is_ready for pod in pods)
    for reason, count in Counter(pod.cause.reason for pod in pods if pod.cause).items():
        yield "millrace_failing_replicas", (str(reason),), count


def _describe_cost(cost: Mapping[str, Any], thought: Thought | None) -> Iterator[Value]:
    per_hour, saved = parse_number(cost.get("perHour")), parse_number(cost.get("savedPerHour"))
    if per_hour is None or saved is None:
        return
    labels = (str(cost.get("currency")),)
    yield "millrace_cost_per_hour", labels, per_hour
    yield "millrace_saved_per_hour", labels, saved
    rate = None if thought is None else thought.signals.generated_tokens_per_second
    million = price_million_tokens(per_hour, rate)
    if million is not None:
        yield "millrace_cost_per_thousand_tokens", labels, million / 1000


def _describe_thought(thought: Thought, objectives: Iterable[Objective]) -> Iterator[Value]:
    estimate, model = thought.decision.estimate, thought.memory.model
    known = {
        "millrace_recommended_replicas": thought.decision.desired,
        "millrace_arrivals_per_second": estimate.rate,
        "millrace_forecast_arrivals_per_second": estimate.forecast,
        "millrace_planned_arrivals_per_second": estimate.per_replica,
        "millrace_cold_start_seconds": thought.memory.cold_start_seconds,
        "millrace_step_model_error_ratio": model.relative_error,
    }
    yield from ((name, (), value) for name, value in known.items() if value is not None)
    if model.num_samples:
        terms = (("fixed", model.alpha), ("token", model.beta), ("context_token", model.gamma))
        yield from (("millrace_step_model_seconds", (term,), seconds) for term, seconds in terms)
    if estimate.capacity is not None:
        for objective in objectives:
            is_named = f"P{objective.percentile} {objective.metric.value}" in estimate.infeasible
            yield "millrace_objective_infeasible", _name(objective), float(is_named)
