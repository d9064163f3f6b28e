"""What this gateway tells the leading operator of its requests, line by line. Pure.

A line is a JSON object with what has changed since the line before; the first one has everything, as a reader
starts with nothing.

- `in_flight`: requests that replicas have of this gateway, by their pods' uids.
- `ready`: 1 for each replica that can get requests, by uid; 0 for one that no longer can.
- `leaving`: the uids of all replicas that get nothing new.
- `open`: requests of each service that have not ended, with those that are held, by `<namespace>/<name>`.
- `arrived`: how many requests each service has got since this gateway began.
- `ended`: how many seconds ago each service's last request ended.
- `known`: since how many seconds this gateway knows of requests; in the first line alone.
"""

import json
from collections.abc import Mapping
from typing import Any

from millrace_gateway.hold.activity import Activity
from millrace_gateway.route.balance import Balancer
from millrace_gateway.route.catalogue import Catalogue

_TOLD_EMPTY = frozenset({"leaving", "known"})
"""What says something by being empty, or zero."""
_READY = "ready"
"""Told empty in the first line alone: an older gateway does not have it."""


class Report:
    """The lines for one reader."""

    def __init__(self, catalogue: Catalogue, balancer: Balancer, activity: Activity) -> None:
        self._catalogue = catalogue
        self._balancer = balancer
        self._activity = activity
        self._seen: dict[str, int] = {}
        """How many changes of each of them the lines have told."""
        self._leaving: frozenset[str] | None = None
        self._ready: dict[str, int] = {}
        self._in_flight: dict[str, int] = {}
        self._open: dict[str, int] = {}
        self._arrived: dict[str, int] = {}
        self._ends: dict[str, float] = {}

    def next_line(self, now: float) -> bytes:
        """Return what has changed since the line before. `now` is by the activity's clock."""
        line: dict[str, Any] = {}
        is_first = self._leaving is None
        if is_first:
            line["known"] = round(now - self._activity.began, 3)
        if self._has_news("catalogue", self._catalogue.num_changes):
            line |= self._tell_replicas()
        if self._has_news("balancer", self._balancer.num_changes):
            line |= self._tell_in_flight()
        if self._has_news("activity", self._activity.num_changes):
            line |= self._tell_activity(now)
        kept = {*_TOLD_EMPTY, _READY} if is_first else _TOLD_EMPTY
        told = {name: value for name, value in line.items() if value or name in kept}
        return json.dumps(told).encode() + b"\n"

    def _has_news(self, name: str, num_changes: int) -> bool:
        """Whether something has changed since the line before: only then thousands of names are compared."""
        has_news = self._seen.get(name) != num_changes
        self._seen[name] = num_changes
        return has_news

    def _tell_replicas(self) -> dict[str, Any]:
        before, ready = self._ready, dict.fromkeys(self._catalogue.list_ready(), 1)
        told, leaving = self._leaving, self._catalogue.list_leaving()
        self._ready, self._leaving = ready, leaving
        changed = {} if leaving == told else {"leaving": sorted(leaving)}
        return {_READY: _find_changed(before, ready), **changed}

    def _tell_in_flight(self) -> dict[str, Any]:
        before, self._in_flight = self._in_flight, self._balancer.count_all()
        return {"in_flight": _find_changed(before, self._in_flight)}

    def _tell_activity(self, now: float) -> dict[str, Any]:
        num_open, self._open = self._open, self._activity.count_open()
        num_arrived, self._arrived = self._arrived, self._activity.count_arrived()
        before, self._ends = self._ends, self._activity.list_ends()
        ended = {key: round(now - end, 3) for key, end in self._ends.items() if before.get(key) != end}
        arrived = _find_changed(num_arrived, self._arrived)
        return {"open": _find_changed(num_open, self._open), "arrived": arrived, "ended": ended}


def _find_changed(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return the counts that are others now, 0 for what is not there any more."""
    names = before.keys() | after.keys()
    return {name: after.get(name, 0) for name in names if before.get(name) != after.get(name)}
