"""What the gateway counts, a series for each service, under the names in `contract`.

Every known service has its series from the start: an absent series and no arrivals are different things
to whoever scales by them.
"""

from collections.abc import Collection
from enum import StrEnum

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    generate_latest,
)

from millrace_gateway.objects import Key
from millrace_runtime.contract import (
    METRIC_GATEWAY_ARRIVALS,
    METRIC_GATEWAY_FINISHED,
    METRIC_GATEWAY_IN_FLIGHT,
)

CONTENT_TYPE = CONTENT_TYPE_LATEST
_LABELS = ("namespace", "service")


class Outcome(StrEnum):
    """How a request ended."""

    COMPLETED = "completed"
    """A replica's answer, below 500, went through whole."""
    CLIENT_LEFT = "client_left"
    """The client closed its connection first."""
    UPSTREAM_ERROR = "upstream_error"
    """A replica answered 500 or above, or broke off."""
    NO_REPLICA = "no_replica"
    """No replica was ready to take it."""


class Metrics:
    """The gateway's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._arrivals = Counter(
            METRIC_GATEWAY_ARRIVALS, "Requests received for a service.", _LABELS, registry=self.registry
        )
        self._finished = Counter(
            METRIC_GATEWAY_FINISHED,
            "Requests ended, by outcome.",
            (*_LABELS, "outcome"),
            registry=self.registry,
        )
        self._in_flight = Gauge(
            METRIC_GATEWAY_IN_FLIGHT, "Requests received and not ended.", _LABELS, registry=self.registry
        )
        self._known: set[Key] = set()

    def track(self, keys: Collection[Key]) -> None:
        """Begin the series of new services, and drop those of deleted ones."""
        for key in self._known.difference(keys):
            self._forget(key)
        for key in set(keys) - self._known:
            self._arrivals.labels(*key)
            self._in_flight.labels(*key)
            for outcome in Outcome:
                self._finished.labels(*key, outcome)
        self._known = set(keys)

    def begin(self, key: Key) -> None:
        """Count an arrival. A service deleted meanwhile has no series left to count in."""
        if key in self._known:
            self._arrivals.labels(*key).inc()
            self._in_flight.labels(*key).inc()

    def end(self, key: Key, outcome: Outcome) -> None:
        """Count its end."""
        if key in self._known:
            self._in_flight.labels(*key).dec()
            self._finished.labels(*key, outcome).inc()

    def render(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def _forget(self, key: Key) -> None:
        self._arrivals.remove(*key)
        self._in_flight.remove(*key)
        for outcome in Outcome:
            self._finished.remove(*key, outcome)
