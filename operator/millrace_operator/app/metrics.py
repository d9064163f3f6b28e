"""The operator's metrics: those of the process, and those of each service.

A metric of the process that controller-runtime has too has its name and labels. Two lack a label:
`workqueue_depth` has no `priority`, and `rest_client_requests_total` no `host`.

The metrics of services come from the cache at each scrape. So every replica of the operator has them, and
none is missing while the leader changes. Only the leader has what the autoscaler decides.
"""

import collections
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from millrace_kubernetes.model_names import Standing
from millrace_operator.api.quantities import parse_number
from millrace_operator.api.scaling_types import Objective, ObjectiveMetric, ScalingMode
from millrace_operator.api.types import Spec
from millrace_operator.autoscaler.decide.decision import Decision
from millrace_operator.autoscaler.decide.memory import Memory
from millrace_operator.autoscaler.signals.observation import Signals
from millrace_operator.controller.cache import Cache
from millrace_operator.controller.queue import WorkQueue
from millrace_operator.kube.kinds import Obj, ServiceKey
from millrace_operator.observed.pods import read_pod
from millrace_operator.status.cost import price_million_tokens
from millrace_runtime import contract

_CONTROLLER = "inferenceservice"
_PREFIX = "controller_runtime"


class _QueueCollector(Collector):
    """The queue's counters, read at each scrape."""

    def __init__(self, queue: WorkQueue) -> None:
        self._queue = queue

    def collect(self) -> Iterable[Metric]:
        """Return its depth, adds and retries."""
        queue = self._queue
        labels = ["name", "controller"]
        depth = GaugeMetricFamily("workqueue_depth", "Keys that wait.", labels=labels)
        adds = CounterMetricFamily("workqueue_adds", "Keys added.", labels=labels)
        retries = CounterMetricFamily("workqueue_retries", "Keys tried again.", labels=labels)
        depth.add_metric([_CONTROLLER, _CONTROLLER], len(queue))
        adds.add_metric([_CONTROLLER, _CONTROLLER], queue.num_added)
        retries.add_metric([_CONTROLLER, _CONTROLLER], queue.num_retries)
        return depth, adds, retries


class Metrics:
    """All metrics of one process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        per_controller = f"{_PREFIX}_reconcile"
        self._reconciles = counter(f"{per_controller}_total", "Reconciles.", ["controller", "result"])
        self._errors = counter(f"{per_controller}_errors_total", "Failed reconciles.", ["controller"])
        self._seconds = Histogram(
            f"{per_controller}_time_seconds", "Duration.", ["controller"], registry=self.registry
        )
        workers = gauge(f"{_PREFIX}_active_workers", "Workers at work.", ["controller"])
        self.active_workers = workers.labels(_CONTROLLER)
        self._watch_age = gauge("watch_last_event_age_seconds", "Since the last watch event.")
        self._gateways = gauge("millrace_operator_gateways", "Gateways that may have requests.")
        self._silent = gauge("millrace_operator_gateways_silent", "Gateways that report nothing.")
        self._leader = gauge("leader_election_master_status", "1 while leading.", ["name"])
        self.relists = counter("relist_total", "Complete lists.")
        self.ghosts = counter("cache_ghosts_swept_total", "Missed deletes.")
        self._requests = counter(
            "rest_client_requests_total", "API requests; code 0: no answer came.", ["method", "code"]
        )

    def follow(
        self,
        queue: WorkQueue,
        watch_age_seconds: Callable[[], float],
        lease: str,
        is_leader: Callable[[], bool],
    ) -> None:
        """Read the queue, the watch's age and the leadership at each scrape."""
        self.registry.register(_QueueCollector(queue))
        self._watch_age.set_function(watch_age_seconds)
        self._leader.labels(lease).set_function(is_leader)

    def follow_gateways(self, num_expected: Callable[[], int], num_silent: Callable[[], int]) -> None:
        """Read at each scrape how many gateways there are, and how many are silent; 0 on a standby."""
        self._gateways.set_function(num_expected)
        self._silent.set_function(num_silent)

    def count_request(self, method: str, code: int) -> None:
        """Count a request to the API server."""
        self._requests.labels(method, str(code)).inc()

    def count_reconcile(self, result: str, seconds: float) -> None:
        """Count a reconcile: result success, requeue_after, requeue or error."""
        self._reconciles.labels(_CONTROLLER, result).inc()
        self._seconds.labels(_CONTROLLER).observe(seconds)
        if result == "error":
            self._errors.labels(_CONTROLLER).inc()


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


class Considered(Protocol):
    """The autoscaler's last decision for a service, and its knowledge."""

    @property
    def decision(self) -> Decision:
        """The decision."""

    @property
    def signals(self) -> Signals:
        """The signals before the decision."""

    @property
    def memory(self) -> Memory:
        """The memory after the decision."""


class ServiceCollector(Collector):
    """Reads every known service at each scrape. The series of a deleted service end."""

    def __init__(self, cache: Cache, find_considered: Callable[[ServiceKey], Considered | None]) -> None:
        self._cache = cache
        self._find_considered = find_considered

    def collect(self) -> Iterable[Metric]:
        """Return all families, also the empty ones."""
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
            pass  # status says what is wrong with the spec
        yield "millrace_name_shadowed", (), float(self._cache.standing(key) is not Standing.HELD)
        yield from _describe_scaling(service.get("status", {}).get("scaling", {}))
        yield from _describe_pods(self._cache.pods(key))
        considered = self._find_considered(key)
        yield from _describe_cost(service.get("status", {}).get("cost", {}), considered)
        if considered is not None:
            yield from _describe_decision(considered, objectives)


Value = tuple[str, tuple[str, ...], float]
"""A metric's name, its labels after namespace and service, and its value."""


def find_bounds(metric: ObjectiveMetric, target_seconds: float) -> tuple[float | None, float]:
    """Return the largest bound at or below a target (None without one) and the smallest at or above it."""
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
    for reason, count in collections.Counter(pod.cause.reason for pod in pods if pod.cause).items():
        yield "millrace_failing_replicas", (str(reason),), count


def _describe_cost(cost: Mapping[str, Any], considered: Considered | None) -> Iterator[Value]:
    per_hour, saved = parse_number(cost.get("perHour")), parse_number(cost.get("savedPerHour"))
    if per_hour is None or saved is None:
        return
    labels = (str(cost.get("currency")),)
    yield "millrace_cost_per_hour", labels, per_hour
    yield "millrace_saved_per_hour", labels, saved
    rate = None if considered is None else considered.signals.generated_tokens_per_second
    million = price_million_tokens(per_hour, rate)
    if million is not None:
        yield "millrace_cost_per_thousand_tokens", labels, million / 1000


def _describe_decision(considered: Considered, objectives: Iterable[Objective]) -> Iterator[Value]:
    estimate, model = considered.decision.estimate, considered.memory.model
    known = {
        "millrace_recommended_replicas": considered.decision.desired,
        "millrace_arrivals_per_second": estimate.rate,
        "millrace_forecast_arrivals_per_second": estimate.forecast,
        "millrace_planned_arrivals_per_second": estimate.per_replica,
        "millrace_cold_start_seconds": considered.memory.cold_start_seconds,
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
