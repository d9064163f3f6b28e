"""The operator's own metrics, under controller-runtime's names so that its dashboards carry over."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_CONTROLLER = "inferenceservice"


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
        self.queue_depth = Gauge("workqueue_depth", "Keys that wait.", registry=self.registry)
        self.queue_adds = Gauge("workqueue_adds_total", "Keys added.", registry=self.registry)
        self.queue_retries = Gauge("workqueue_retries_total", "Keys tried again.", registry=self.registry)
        self.watch_age = Gauge(
            "watch_last_event_age_seconds", "Since the last watch event.", registry=self.registry
        )
        self.leader = Gauge(
            "leader_election_master_status", "1 while leading.", ["name"], registry=self.registry
        )
        self.relists = Counter("relist_total", "Complete lists.", registry=self.registry)
        self.ghosts = Counter("cache_ghosts_swept_total", "Missed deletes.", registry=self.registry)
        self._requests = Counter(
            "rest_client_requests_total", "API requests; code 0: none came.", ["method", "code"],
            registry=self.registry,
        )  # fmt: skip

    def count_request(self, method: str, code: int) -> None:
        """Count a request to the API server."""
        self._requests.labels(method, str(code)).inc()

    def count_reconcile(self, result: str, seconds: float) -> None:
        """Count a reconcile: result success, requeue_after or error."""
        self._reconciles.labels(_CONTROLLER, result).inc()
        self._seconds.labels(_CONTROLLER).observe(seconds)
        if result == "error":
            self._errors.labels(_CONTROLLER).inc()
