"""The gateway's metrics, one series for each service, under the names in `contract`.

Every known service has its series from the start: for an autoscaler an absent series means unknown, and a
series of zeros means no arrivals.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    generate_latest,
)

from millrace_gateway.errors import RequestRefusedError, list_codes
from millrace_gateway.route.objects import ServiceKey
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
    """The client got a replica's complete answer with a status below 500 other than 429."""
    CLIENT_LEFT = "client_left"
    """The client closed its connection first."""
    UPSTREAM_ERROR = "upstream_error"
    """A replica answered 500 or above, or broke off."""
    REFUSED = "refused"
    """A full replica answered 429, or the gateway had no room for the body."""
    NO_REPLICA = "no_replica"
    """No replica was ready."""


@dataclass
class Ending:
    """The outcome of a request, set by the proxy."""

    outcome: Outcome = Outcome.CLIENT_LEFT
    """The default applies to a cancelled handler: the client has disconnected."""


@dataclass(frozen=True)
class Series:
    """The series of one service."""

    arrivals: Counter
    in_flight: Gauge
    finished: Mapping[Outcome, Counter]


class Metrics:
    """The gateway's metrics, in a registry of their own."""

    def __init__(self, count_body_bytes: Callable[[], float] = float) -> None:
        """Start without series. `count_body_bytes` returns the present memory of request bodies."""
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
        self.refusals = Counter(
            "millrace_gateway_refusals_total",
            "Requests that the gateway refused, by the code of its answer.",
            ("code",),
            registry=self.registry,
        )
        for code in list_codes():
            self.refusals.labels(code)
        Gauge(
            "millrace_gateway_body_bytes",
            "Memory of all request bodies that the gateway holds.",
            registry=self.registry,
        ).set_function(count_body_bytes)
        self._series: dict[ServiceKey, Series] = {}

    def track(self, keys: Collection[ServiceKey]) -> None:
        """Create the series of each new service, and remove those of deleted services."""
        for key in self._series.keys() - set(keys):
            self._remove(key)
        for key in set(keys) - self._series.keys():
            self._series[key] = Series(
                self._arrivals.labels(*key),
                self._in_flight.labels(*key),
                {outcome: self._finished.labels(*key, outcome) for outcome in Outcome},
            )

    @contextmanager
    def count_request(self, key: ServiceKey) -> Iterator[Ending]:
        """Count a request's arrival, and at the exit its end, with the outcome that the caller has set.

        A request of an untracked service is in no series. If its service is deleted and created again
        meanwhile, the new series do not count its end.
        """
        ending, series = Ending(), self._series.get(key)
        if series:
            series.arrivals.inc()
            series.in_flight.inc()
        try:
            yield ending
        finally:
            if series:
                series.in_flight.dec()
                series.finished[ending.outcome].inc()

    def note_refusal(self, refusal: RequestRefusedError) -> None:
        """Count a refusal by its code."""
        self.refusals.labels(refusal.code).inc()

    def render(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def _remove(self, key: ServiceKey) -> None:
        del self._series[key]
        self._arrivals.remove(*key)
        self._in_flight.remove(*key)
        for outcome in Outcome:
            self._finished.remove(*key, outcome)
