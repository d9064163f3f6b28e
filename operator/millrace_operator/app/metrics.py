"""The operator's own metrics. A metric that controller-runtime has too has its name and labels.

Two lack a label: `workqueue_depth` has no `priority`, and `rest_client_requests_total` no `host`.
"""

from collections.abc import Callable, Iterable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from millrace_operator.controller.queue import WorkQueue

_CONTROLLER = "inferenceservice"
_PREFIX = "controller_runtime"


class _QueueCollector(Collector):
    """The queue's own counts, read at each scrape."""

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
        self._silent = gauge("millrace_operator_gateways_silent", "Those that do not tell what they have.")
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
