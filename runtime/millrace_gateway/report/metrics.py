"""The gateway's metrics, one series for each service, under the names in `contract`.

Every known service has its series from the start: for an autoscaler an absent series means unknown, and a
series of zeros means no arrivals.

Counts are plain integers, and a scrape writes them as text: a call of prometheus_client's counters takes half
a microsecond and a lock, of which a request would need six, and its writer holds the loop for a tenth of a
second where there are 2,000 services.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.registry import Collector

from millrace_gateway.errors import RequestRefusedError, list_codes
from millrace_gateway.route.objects import ServiceChanges, ServiceKey
from millrace_runtime.contract import (
    METRIC_GATEWAY_ARRIVALS,
    METRIC_GATEWAY_FINISHED,
    METRIC_GATEWAY_IN_FLIGHT,
)

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Outcome(StrEnum):
    """How a request ended."""

    COMPLETED = "completed"
    """The client got a replica's complete answer with a status below 500 other than 429."""
    CLIENT_LEFT = "client_left"
    """The client closed its connection first."""
    UPSTREAM_ERROR = "upstream_error"
    """A replica answered 500 or above, or broke off."""
    REFUSED = "refused"
    """A full replica answered 429, or the gateway had no room for the body, or ended before its turn."""
    NO_REPLICA = "no_replica"
    """No replica was ready."""


class RetryCause(StrEnum):
    """Why a request was sent to another replica."""

    REFUSED = "refused"
    """The replica accepted no connection."""
    DRAINING = "draining"
    """The replica answered that it is about to end."""
    TOKEN = "token"  # noqa: S105  a cause
    """The replica did not accept the gateway's token."""
    FULL = "full"
    """The replica answered 429, and another one may have room."""


@dataclass(slots=True)
class Series:
    """The series of one service."""

    arrivals: int = 0
    in_flight: int = 0
    finished: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))


class Ending:
    """Counts the end of one request."""

    __slots__ = ("_series",)

    def __init__(self, series: Series | None) -> None:
        self._series = series

    def end(self, outcome: Outcome) -> None:
        """Count the request's end."""
        series = self._series
        if series is not None:
            series.in_flight -= 1
            series.finished[outcome] += 1


class Metrics:
    """The gateway's counts."""

    def __init__(self, count_body_bytes: Callable[[], float] = float) -> None:
        """Start without series. `count_body_bytes` returns the present memory of request bodies."""
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        self._count_body_bytes = count_body_bytes
        self._refusals = dict.fromkeys(list_codes(), 0)
        self._retries = dict.fromkeys(RetryCause, 0)
        self._series: dict[ServiceKey, Series] = {}
        self.count_waiting: Callable[[], Mapping[ServiceKey, int]] = dict
        """Returns how many requests wait for their turns, of each service that has some."""

    def add_collector(self, collector: Collector) -> None:
        """Render more metrics, those of the collector."""
        self._process.register(collector)

    def track(self, changes: ServiceChanges) -> None:
        """Create the series of each new service, and remove those of deleted services."""
        for key in changes.deleted:
            self._series.pop(key, None)
        for key in changes.added:
            self._series.setdefault(key, Series())

    def begin(self, key: ServiceKey) -> Ending:
        """Count a request's arrival. The caller counts its end.

        A request of an untracked service is in no series. If its service is deleted and created again
        meanwhile, the new series do not count its end.
        """
        series = self._series.get(key)
        if series is not None:
            series.arrivals += 1
            series.in_flight += 1
        return Ending(series)

    def count_retry(self, cause: RetryCause) -> None:
        """Count a request that is sent again."""
        self._retries[cause] += 1

    def note_refusal(self, refusal: RequestRefusedError) -> None:
        """Count a request that the gateway refused, by the code of its answer."""
        self._refusals[refusal.code] = self._refusals.get(refusal.code, 0) + 1

    def render(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return "\n".join(self._render_lines()).encode() + b"\n" + generate_latest(self._process)

    def _render_lines(self) -> Iterator[str]:
        named = [
            (f'{{namespace="{key.namespace}",service="{key.name}"', series)
            for key, series in self._series.items()
        ]
        arrivals = (f"{labels}}} {one.arrivals}" for labels, one in named)
        yield from _render(METRIC_GATEWAY_ARRIVALS, "counter", "Requests received for a service.", arrivals)
        finished = (
            f'{labels},outcome="{outcome}"}} {count}'
            for labels, one in named
            for outcome, count in one.finished.items()
        )
        yield from _render(METRIC_GATEWAY_FINISHED, "counter", "Requests ended, by outcome.", finished)
        in_flight = (f"{labels}}} {one.in_flight}" for labels, one in named)
        yield from _render(METRIC_GATEWAY_IN_FLIGHT, "gauge", "Requests received and not ended.", in_flight)
        waiting = self.count_waiting()
        yield from _render(
            "millrace_gateway_requests_waiting",
            "gauge",
            "Requests of clients that wait for their turns, because no replica has room.",
            (
                f"{labels}}} {waiting.get(key, 0)}"
                for key, (labels, _) in zip(self._series, named, strict=True)
            ),
        )
        yield from _render(
            "millrace_gateway_refusals_total",
            "counter",
            "Requests that the gateway refused, by the code of its answer.",
            (f'{{code="{code}"}} {count}' for code, count in self._refusals.items()),
        )
        yield from _render(
            "millrace_gateway_retries_total",
            "counter",
            "Requests that the gateway sent again, by cause.",
            (f'{{cause="{cause}"}} {count}' for cause, count in self._retries.items()),
        )
        yield from _render(
            "millrace_gateway_body_bytes",
            "gauge",
            "Memory of all request bodies that the gateway holds.",
            (f" {self._count_body_bytes()}",),
        )


def _render(name: str, kind: str, text: str, samples: Iterable[str]) -> Iterator[str]:
    """Yield a metric's lines. A sample is labels and a value: Kubernetes' names need no escapes."""
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    for sample in samples:
        yield name + sample
