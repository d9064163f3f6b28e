"""The metrics of one node's process."""

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector

from millrace_node_cache.models import DiskSpace, Model


class Metrics:
    """The metrics, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._models = self._make_gauge("models", "Models that are complete on this node's disk.")
        self._kept = self._make_gauge(
            "kept_bytes", "Bytes of the disk that models take, incomplete ones too."
        )
        self._total = self._make_gauge("disk_bytes", "Size of the disk.")
        self._used = self._make_gauge("disk_used_bytes", "Bytes of the disk in use, by models and all else.")
        self._excess = self._make_gauge("excess_bytes", "Bytes over the limit that may not be evicted.")
        self._evictions = self._make_counter("evictions", "Models evicted.")
        self._failures = self._make_counter("failures", "Looks at the disk at which a step failed.")

    def _make_gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"millrace_node_cache_{name}", text, registry=self.registry)

    def _make_counter(self, name: str, text: str) -> Counter:
        return Counter(f"millrace_node_cache_{name}", text, registry=self.registry)

    def show(self, space: DiskSpace, models: tuple[Model, ...], excess_bytes: int) -> None:
        """Set the gauges to the state after a look."""
        self._models.set(sum(model.is_whole for model in models))
        self._kept.set(sum(model.num_bytes for model in models))
        self._total.set(space.total_bytes)
        self._used.set(space.used_bytes)
        self._excess.set(excess_bytes)

    def count_eviction(self) -> None:
        """Count an evicted model."""
        self._evictions.inc()

    def count_failure(self) -> None:
        """Count a look at which a step failed."""
        self._failures.inc()
