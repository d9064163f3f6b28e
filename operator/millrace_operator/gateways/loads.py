"""The requests at pods and the arrivals at services, summed over the reports of all gateways.

Any scraped pod can export a metric about another tenant's service. So decisions rest on the gateways'
streams, where each side proves who it is.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from millrace_operator.observed.snapshot import Demand, PodLoad

KEPT_SECONDS = 600
"""More than the longest window."""
SILENT_SECONDS = 5.0
"""Arrivals are unknown after a gateway has been silent for so long. A new gateway is silent at first."""

WAITING_SECONDS = 10.0
"""Requests that wait at a silent gateway count for so long after its last report. Then their clients left."""


class MalformedLineError(ValueError):
    """A gateway's line that the operator can't read."""


@dataclass
class _Report:
    """What one gateway has reported so far."""

    in_flight: dict[str, int] = field(default_factory=dict)
    """Requests by the pods' uids."""
    leaving: frozenset[str] = frozenset()
    ready: dict[str, int] | None = None
    """1 for each pod that it may send requests to, by uid; None from an older gateway."""
    num_open: dict[str, int] = field(default_factory=dict)
    """Requests of services, by `<namespace>/<name>`."""
    waiting: dict[str, int] = field(default_factory=dict)
    """The open requests that wait in the gateway until replicas have room."""
    known: float = math.inf
    """Since when it knows of requests, in seconds since 1970."""
    arrived: dict[str, int] = field(default_factory=dict)
    """Requests of services since then."""
    at: float = 0.0
    """When it reported this, in seconds since 1970."""

    def has_restarted(self, before: "_Report") -> bool:
        """Whether this comes from another process than the report before."""
        return self.known > before.at


class Loads:
    """Owner of the gateways' reports. Gateways and pods go by their uids. Times are seconds since 1970."""

    def __init__(self) -> None:
        self._expected: frozenset[str] = frozenset()
        self._reports: dict[str, _Report] = {}
        self._lost: dict[str, _Report] = {}
        """Reports of gateways that are silent now. The requests may still be there."""
        self._unreported_until = -math.inf
        """When the last gateway went that had reported nothing. It may have had requests of any service."""
        self._ended: dict[str, float] = {}
        """When each service's last request ended, also at a gateway that is gone."""
        self._silent_since: float | None = -math.inf
        self._arrivals = Arrivals()
        self._arrivals_since = -math.inf
        """Since when all arrivals are known."""

    def begin(self, now: float) -> None:
        """Forget everything: another replica leads, or led until now."""
        self._expected, self._reports, self._lost = frozenset(), {}, {}
        self._silent_since = now
        self._arrivals, self._arrivals_since = Arrivals(), now

    def expect(self, gateways: Iterable[str], now: float) -> None:
        """Record which gateways there are. While one of them is silent, part of each pod's load is unknown.

        The requests of a deleted gateway have ended with it.
        """
        before = self._expected | self._reports.keys() | self._lost.keys()
        self._expected = frozenset(gateways)
        for gone in before - self._expected:
            report = self._reports.pop(gone, None) or self._lost.pop(gone, None)
            if report is None:
                self._unreported_until = now
            else:
                self._ended |= dict.fromkeys(report.num_open, now)
        self._note_silence(now)

    def note(self, gateway: str, line: Any, now: float) -> list[str]:
        """Record a gateway's next line, parsed, and return the services that have had a request since.

        Raises MalformedLineError, and then records nothing.
        """
        before = self._reports.get(gateway) or self._lost.get(gateway)
        report = self._reports.get(gateway, _Report())
        try:
            num_open = _read_counts(line.get("open", {}))
            waiting = _read_counts(line.get("waiting", {}))
            changed = _read_counts(line.get("arrived", {}))
            ended = {str(key): now - _read_age(age) for key, age in line.get("ended", {}).items()}
            new = _Report(
                in_flight=_merge(report.in_flight, _read_counts(line.get("in_flight", {}))),
                leaving=frozenset(map(str, line["leaving"])) if "leaving" in line else report.leaving,
                ready=_merge(report.ready or {}, _read_counts(line["ready"]))
                if "ready" in line
                else report.ready,
                num_open=_merge(report.num_open, num_open),
                waiting=_merge(report.waiting, waiting),
                known=now - _read_age(line["known"]) if "known" in line else report.known,
                arrived=_merge(report.arrived, changed),
                at=now,
            )
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            raise MalformedLineError(f"no line of a gateway: {error}") from error
        self._count_arrivals(before, new, changed)
        self._reports[gateway] = new
        self._lost.pop(gateway, None)
        self._ended |= {key: max(end, self._ended.get(key, end)) for key, end in ended.items()}
        self._note_silence(now)
        return [key for key in {**num_open, **ended} if num_open.get(key) or key in ended]

    def lose(self, gateway: str, now: float) -> None:
        """Record that the gateway is silent from now on. Its next line is whole, as a first line is."""
        if gateway in self._reports:
            self._lost[gateway] = self._reports.pop(gateway)
        self._note_silence(now)

    def keep(self, keys: Collection[str]) -> None:
        """Forget the ends and the arrivals of all other services."""
        self._arrivals.keep(keys)
        self._ended = {key: end for key, end in self._ended.items() if key in keys}

    def read(self, pods: Iterable[str]) -> Mapping[str, PodLoad]:
        """Return the pods' loads, as far as gateways report them."""
        reports, since = self._reports.values(), self._silent_since
        return {
            uid: PodLoad(
                sum(one.in_flight.get(uid, 0) for one in reports),
                since is None and all(uid in one.leaving for one in reports),
                since,
                since is not None or all(one.ready is None or uid in one.ready for one in reports),
            )
            for uid in pods
        }

    def read_demand(self, key: str) -> Demand:
        """Return a service's requests, as far as known, by `<namespace>/<name>`."""
        reports, ended = self._reports.values(), self._ended.get(key)
        num_open = sum(one.num_open.get(key, 0) for one in reports)
        if num_open or self._silent_since is not None:
            return Demand(num_open, None, ended)
        known = max(self._unreported_until, *(one.known for one in reports))
        return Demand(0, known if ended is None else max(known, ended), ended)

    def read_arrivals(self, key: str, seconds: float, now: float) -> float | None:
        """Return a service's requests a second in the last so many seconds; None while they are unknown."""
        is_silent = self._silent_since is not None and now > self._silent_since + SILENT_SECONDS
        if is_silent or not (self._reports or self._lost) or self._arrivals_since > now - seconds:
            return None
        return self._arrivals.rate(key, seconds, now)

    def count_waiting(self, key: str, now: float) -> int:
        """Return how many of a service's requests wait in gateways until replicas have room."""
        lost = (one for one in self._lost.values() if now <= one.at + WAITING_SECONDS)
        return sum(one.waiting.get(key, 0) for one in (*self._reports.values(), *lost))

    def _count_arrivals(self, before: _Report | None, now: _Report, changed: Mapping[str, int]) -> None:
        """Count the arrivals since the gateway's last report, or since its start. `changed` is in its
        line.
        """
        if before is None or now.has_restarted(before):
            if now.known < self._arrivals_since:
                self._arrivals_since = now.at
                return
            before = _Report(at=now.known)
        for key, count in changed.items():
            if rise := count - before.arrived.get(key, 0):
                self._arrivals.add(key, rise if rise > 0 else count, before.at, now.at)

    @property
    def num_expected(self) -> int:
        """How many gateways there are."""
        return len(self._expected)

    @property
    def num_silent(self) -> int:
        """How many of them are silent."""
        return len(self._expected - self._reports.keys())

    def _note_silence(self, now: float) -> None:
        """Record since when there is no gateway, or one of them is silent."""
        is_complete = bool(self._expected) and self._expected <= self._reports.keys()
        if is_complete:
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = now


def _read_counts(found: Mapping[str, Any]) -> dict[str, int]:
    return {str(name): int(count) for name, count in found.items()}


def _read_age(found: Any) -> float:
    """Return an age in seconds. Raises ValueError for an impossible one."""
    age = float(found)
    if not 0.0 <= age < math.inf:
        raise ValueError(f"{found} is no age")
    return age


def _merge(before: dict[str, int], changed: Mapping[str, int]) -> dict[str, int]:
    if not changed:
        return before
    return {name: count for name, count in {**before, **changed}.items() if count}


class Arrivals:
    """Owner of the counts of arrivals. Services go by `<namespace>/<name>`; times are seconds since 1970."""

    def __init__(self) -> None:
        self._seconds: dict[str, defaultdict[int, float]] = {}

    def add(self, key: str, count: float, begin: float, end: float) -> None:
        """Count requests that came between two times, evenly spread.

        If the clock was set back between the two, all of them came at the end.
        """
        slots = self._seconds.setdefault(key, defaultdict(float))
        first, last = math.floor(min(max(begin, end - KEPT_SECONDS), end)), math.floor(end)
        is_new = last not in slots
        for slot in range(first, last + 1):
            slots[slot] += count / (last + 1 - first)
        if is_new:  # seconds come in order, except from a gateway that reported late
            while (oldest := next(iter(slots))) < end - KEPT_SECONDS:
                del slots[oldest]

    def keep(self, keys: Collection[str]) -> None:
        """Forget all other services."""
        self._seconds = {key: slots for key, slots in self._seconds.items() if key in keys}

    def rate(self, key: str, seconds: float, now: float) -> float:
        """Return the requests a second in the last so many seconds."""
        slots: Mapping[int, float] = self._seconds.get(key, {})
        begin = now - seconds
        whole = sum(count for slot, count in slots.items() if begin < slot <= now)
        oldest = math.floor(begin)
        return (whole + slots.get(oldest, 0.0) * (oldest + 1 - begin)) / seconds
