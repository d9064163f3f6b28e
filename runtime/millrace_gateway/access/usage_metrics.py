"""Use by client as Prometheus' metrics: a series for each client that uses most, and one for all others.

Which clients have a series changes at most once a minute. A client's series counts from the moment it has
one, so that no counter ever falls, the one for all others included.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from heapq import nlargest
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from millrace_gateway.access.identity import Tenant
from millrace_gateway.access.usage import ClientUse, UsageBook, Use

MOST_CLIENTS = 100
CHOICE_SECONDS = 60.0
"""Between two choices of the clients with a series."""
OTHER = "other"
_LABELS = ("client_namespace", "client_secret", "client")
_NO_CLIENT = ("", "", OTHER)
"""The labels of the series for all others: no Secret has an empty name."""


class Series(NamedTuple):
    """A client with a series of its own."""

    client: ClientUse
    base: Use
    """What it had used when it got the series."""

    @property
    def value(self) -> Use:
        """What it has used since."""
        return _subtract(self.client.total, self.base)


class UsageCollector(Collector):
    """Owner of the choice of clients. `clock` returns the seconds of a monotonic clock."""

    def __init__(self, book: UsageBook, clock: Callable[[], float], most_clients: int = MOST_CLIENTS) -> None:
        self._book = book
        self._clock = clock
        self._most_clients = most_clients
        self._series: dict[Tenant, Series] = {}
        self._ranked: dict[Tenant, int] = {}
        """What each client had used at the last choice."""
        self._retired = Use()
        """What was in the series that have ended."""
        self._chosen_at = -CHOICE_SECONDS

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield the metrics."""
        if self._clock() - self._chosen_at >= CHOICE_SECONDS:
            self._choose()
        requests = _make_family("requests", "Requests of a client that were admitted.")
        refusals = _make_family("refusals", "Requests of a client beyond its limits.")
        tokens = _make_family("tokens", "Tokens of a client, as its limits count them.", "kind")
        for labels, use in self._list_series():
            requests.add_metric(labels, use.requests)
            refusals.add_metric(labels, use.refused)
            for kind in ("prompt", "cached", "completion"):
                tokens.add_metric((*labels, kind), getattr(use, kind))
        yield from (requests, refusals, tokens)

    def _list_series(self) -> Iterator[tuple[tuple[str, ...], Use]]:
        rest = _subtract(self._book.total, self._retired)
        for tenant, series in self._series.items():
            rest = _subtract(rest, series.value)
            yield tuple(tenant), series.value
        yield _NO_CLIENT, rest

    def _choose(self) -> None:
        """Give the series to those that used most since the last choice."""
        self._chosen_at = self._clock()
        clients = self._book.clients
        totals = {tenant: _weigh(client.total) for tenant, client in clients.items()}
        recent = {tenant: total - self._ranked.get(tenant, 0) for tenant, total in totals.items()}
        self._ranked = totals
        busiest = nlargest(self._most_clients, recent, lambda one: (recent[one], one in self._series))
        chosen = {tenant: clients[tenant] for tenant in busiest}
        for tenant, series in list(self._series.items()):
            if chosen.get(tenant) is not series.client:  # another one uses more, or the book has forgotten it
                self._retired.add(self._series.pop(tenant).value)
        for tenant in chosen.keys() - self._series.keys():
            self._series[tenant] = Series(chosen[tenant], replace(chosen[tenant].total))


def _make_family(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"millrace_gateway_client_{name}", text, labels=(*_LABELS, *labels))


def _weigh(use: Use) -> int:
    return use.requests + use.refused + use.prompt + use.completion


def _subtract(use: Use, other: Use) -> Use:
    return Use(
        use.requests - other.requests,
        use.refused - other.refused,
        use.prompt - other.prompt,
        use.cached - other.cached,
        use.completion - other.completion,
    )
