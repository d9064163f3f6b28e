"""Counts this gateway's requests by service, and reports them to the leading operator, line by line. Pure.

A line is a JSON object with the changes since the last line. The first line has all values, because a new
reader knows none.

- `in_flight`: this gateway's requests at each replica, by the pod's uid.
- `ready`: 1 for each replica that can get requests, by uid; 0 for one that no longer can.
- `leaving`: the uids of all replicas that get no new requests.
- `open`: unfinished requests of each service, with held ones, by `<namespace>/<name>`.
- `waiting`: those of them that wait in the gateway for their turns, as no replica has room.
- `arrived`: the number of requests of each service since this gateway started.
- `ended`: seconds since the end of each service's last request.
- `known`: seconds since this gateway began to count; only in the first line.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from millrace_gateway.route.balance import Balancer
from millrace_gateway.route.catalogue import Catalogue
from millrace_gateway.route.objects import ServiceChanges, ServiceKey

_REPORTED_EMPTY = frozenset({"leaving", "known"})
"""Fields that have a meaning also when empty or zero."""
_READY = "ready"
"""Sent empty only in the first line: an older gateway does not have it."""


class Activity:
    """Owner of the counts of this gateway's requests from their arrival to their end, with held ones."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start with no requests. `clock` returns the seconds of a monotonic clock."""
        self._clock = clock
        self.began = clock()
        """The start of the counts: earlier requests are unknown."""
        self.num_changes = 0
        """Number of arrivals and ends of requests."""
        self._open: Counter[ServiceKey] = Counter()
        self._arrived: Counter[ServiceKey] = Counter()
        self._ended: dict[ServiceKey, float] = {}

    def begin(self, key: ServiceKey) -> None:
        """Count a request's arrival; the caller counts its end."""
        self._open[key] += 1
        self._arrived[key] += 1
        self.num_changes += 1

    def end(self, key: ServiceKey) -> None:
        """Count the end of a request that has begun."""
        self._open[key] -= 1
        if not self._open[key]:
            del self._open[key]
        if key in self._arrived:  # if not, the service has been deleted meanwhile
            self._ended[key] = self._clock()
        self.num_changes += 1

    def forget_deleted(self, changes: ServiceChanges) -> None:
        """Forget the ends and the arrivals of the deleted services."""
        for key in changes.deleted:
            self._arrived.pop(key, None)
            self._ended.pop(key, None)

    def count_open(self) -> dict[str, int]:
        """Return the number of open requests of each service that has some."""
        return {str(key): count for key, count in self._open.items()}

    def count_arrived(self) -> dict[str, int]:
        """Return the number of requests of each service since this gateway started."""
        return {str(key): count for key, count in self._arrived.items()}

    def list_ends(self) -> dict[str, float]:
        """Return the end of each service's last request, by the monotonic clock."""
        return {str(key): end for key, end in self._ended.items()}


class Report:
    """The lines for one reader."""

    def __init__(
        self,
        catalogue: Catalogue,
        balancer: Balancer,
        activity: Activity,
        count_waiting: Callable[[], Mapping[ServiceKey, int]] = dict,
    ) -> None:
        """`count_waiting` returns the requests that wait for their turns, by service."""
        self._count_waiting = count_waiting
        self._catalogue = catalogue
        self._balancer = balancer
        self._activity = activity
        self._seen: dict[str, int] = {}
        """The number of changes of each source that past lines contain."""
        self._leaving: frozenset[str] | None = None
        self._ready: dict[str, int] = {}
        self._in_flight: dict[str, int] = {}
        self._open: dict[str, int] = {}
        self._waiting: dict[str, int] = {}
        self._arrived: dict[str, int] = {}
        self._ends: dict[str, float] = {}

    def next_line(self, now: float) -> bytes:
        """Return the changes since the last line. `now` is by the activity's clock."""
        line: dict[str, Any] = {}
        is_first = self._leaving is None
        if is_first:
            line["known"] = round(now - self._activity.began, 3)
        if self._has_news("catalogue", self._catalogue.num_changes):
            line |= self._report_replicas()
        if self._has_news("balancer", self._balancer.num_changes):
            line |= self._report_in_flight()
        if self._has_news("activity", self._activity.num_changes):
            line |= self._report_activity(now)
        waiting = {str(key): count for key, count in self._count_waiting().items()}
        before, self._waiting = self._waiting, waiting
        line["waiting"] = _find_changed(before, self._waiting)
        kept = {*_REPORTED_EMPTY, _READY} if is_first else _REPORTED_EMPTY
        reported = {name: value for name, value in line.items() if value or name in kept}
        return json.dumps(reported).encode() + b"\n"

    def _has_news(self, name: str, num_changes: int) -> bool:
        """Whether a source has changed since the last line: only then thousands of names are compared."""
        has_news = self._seen.get(name) != num_changes
        self._seen[name] = num_changes
        return has_news

    def _report_replicas(self) -> dict[str, Any]:
        before, ready = self._ready, dict.fromkeys(self._catalogue.list_ready(), 1)
        reported, leaving = self._leaving, self._catalogue.list_leaving()
        self._ready, self._leaving = ready, leaving
        changed = {} if leaving == reported else {"leaving": sorted(leaving)}
        return {_READY: _find_changed(before, ready), **changed}

    def _report_in_flight(self) -> dict[str, Any]:
        before, self._in_flight = self._in_flight, self._balancer.count_all()
        return {"in_flight": _find_changed(before, self._in_flight)}

    def _report_activity(self, now: float) -> dict[str, Any]:
        num_open, self._open = self._open, self._activity.count_open()
        num_arrived, self._arrived = self._arrived, self._activity.count_arrived()
        before, self._ends = self._ends, self._activity.list_ends()
        ended = {key: round(now - end, 3) for key, end in self._ends.items() if before.get(key) != end}
        arrived = _find_changed(num_arrived, self._arrived)
        return {"open": _find_changed(num_open, self._open), "arrived": arrived, "ended": ended}


def _find_changed(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return the changed counts, 0 for each removed name."""
    names = before.keys() | after.keys()
    return {name: after.get(name, 0) for name in names if before.get(name) != after.get(name)}
