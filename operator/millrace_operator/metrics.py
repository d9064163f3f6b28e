"""The operator's own metrics, under controller-runtime's names so that its dashboards carry over."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from millrace_operator.ingest.queue import WorkQueue

_CONTROLLER = "inferenceservice"


class _QueueCollector(Collector):
    """The queue's own counts, read when somebody scrapes."""

    def __init__(self, queue: WorkQueue) -> None:
        self._queue = queue

    def collect(self) -> Iterable[Metric]:
        """Yield its depth, adds and retries."""
        queue = self._queue
        yield GaugeMetricFamily("workqueue_depth", "Keys that wait.", len(queue))
        yield CounterMetricFamily("workqueue_adds", "Keys added.", queue.num_added)
        yield CounterMetricFamily("workqueue_retries", "Keys tried again.", queue.num_retries)


class Metrics:
    """All metrics of one process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._reconciles = Counter(
            "controller_runtime_reconcile_total",
            "Reconciles.",
            ["controller", "result"],
            registry=self.registry,
        )
        self._errors = Counter(
            "controller_runtime_reconcile_errors_total",
            "Failed ones.",
            ["controller"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "controller_runtime_reconcile_time_seconds", "Duration.", ["controller"], registry=self.registry
        )
        self.active_workers = Gauge(
            "controller_runtime_active_workers", "Workers at work.", registry=self.registry
        )
        self._watch_age = Gauge(
            "watch_last_event_age_seconds", "Since the last watch event.", registry=self.registry
        )
        self._leader = Gauge(
            "leader_election_master_status", "1 while leading.", ["name"], registry=self.registry
        )
        self.relists = Counter("relist_total", "Complete lists.", registry=self.registry)
        self.ghosts = Counter("cache_ghosts_swept_total", "Missed deletes.", registry=self.registry)
        self._requests = Counter(
            "rest_client_requests_total", "API requests; code 0: none came.", ["method", "code"],
            registry=self.registry,
        )  # fmt: skip

    def follow(
        self,
        queue: WorkQueue,
        watch_age_seconds: Callable[[], float],
        lease: str,
        is_leader: Callable[[], bool],
    ) -> None:
        """Read these whenever somebody scrapes."""
        self.registry.register(_QueueCollector(queue))
        self._watch_age.set_function(watch_age_seconds)
        self._leader.labels(lease).set_function(is_leader)

    def count_request(self, method: str, code: int) -> None:
        """Count a request to the API server."""
        self._requests.labels(method, str(code)).inc()

    def count_reconcile(self, result: str, seconds: float) -> None:
        """Count a reconcile: result success, requeue_after or error."""
        self._reconciles.labels(_CONTROLLER, result).inc()
        self._seconds.labels(_CONTROLLER).observe(seconds)
        if result == "error":
            self._errors.labels(_CONTROLLER).inc()
