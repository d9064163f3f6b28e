"""What one node's process tells to Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector

from millrace_node_cache.models import DiskSpace, Model


class Metrics:
    """The metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._models = self._make_gauge("models", "Models that are whole on this node's disk.")
        self._kept = self._make_gauge("kept_bytes", "What models take of the disk, unfinished ones too.")
        self._total = self._make_gauge("disk_bytes", "Size of the disk.")
        self._used = self._make_gauge("disk_used_bytes", "What of the disk is in use, by anybody.")
        self._excess = self._make_gauge("excess_bytes", "How much is over the limit, and may not go.")
        self._evictions = self._make_counter("evictions", "Models that were evicted.")
        self._failures = self._make_counter("failures", "Looks at which something failed.")

    def _make_gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"millrace_node_cache_{name}", text, registry=self.registry)

    def _make_counter(self, name: str, text: str) -> Counter:
        return Counter(f"millrace_node_cache_{name}", text, registry=self.registry)

    def show(self, space: DiskSpace, models: tuple[Model, ...], excess_bytes: int) -> None:
        """Show what a look has left."""
        self._models.set(sum(model.is_whole for model in models))
        self._kept.set(sum(model.num_bytes for model in models))
        self._total.set(space.total_bytes)
        self._used.set(space.used_bytes)
        self._excess.set(excess_bytes)

    def count_eviction(self) -> None:
        """Count a model that has gone."""
        self._evictions.inc()

    def count_failure(self) -> None:
        """Count a look at which something failed."""
        self._failures.inc()
