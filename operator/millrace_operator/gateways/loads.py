"""What the gateways have at pods, and what arrives at services, put together from what each gateway reports.
Pure.

Anybody who is scraped can export a metric that speaks of another tenant's service. The gateways' streams are
read with a proof on both sides, so decisions rest on them.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from millrace_operator.observed.snapshot import Demand, PodLoad

KEPT_SECONDS = 600
"""More than the longest window."""
UNTOLD_SECONDS = 5.0
"""So long a gateway may not tell, as a new one does at first, until arrivals are unknown."""


class MalformedLineError(ValueError):
    """A gateway's line is not what we can read."""


@dataclass
class _Told:
    """What one gateway has told so far."""

    in_flight: dict[str, int] = field(default_factory=dict)
    """Requests by the pods' uids."""
    leaving: frozenset[str] = frozenset()
    ready: dict[str, int] | None = None
    """1 for each pod that it may send requests to, by uid; None where it does not say, as an older one."""
    num_open: dict[str, int] = field(default_factory=dict)
    """Requests of services, by `<namespace>/<name>`."""
    known: float = math.inf
    """Since when it knows of requests, in seconds since 1970."""
    arrived: dict[str, int] = field(default_factory=dict)
    """Requests of services since then."""
    at: float = 0.0
    """When it told this, in seconds since 1970."""

    def has_restarted(self, before: "_Told") -> bool:
        """Whether this is another process than the one that told before."""
        return self.known > before.at


class Loads:
    """Owner of what each gateway tells. Gateways and pods go by their uids. Times are seconds since 1970."""

    def __init__(self) -> None:
        self._expected: frozenset[str] = frozenset()
        self._told: dict[str, _Told] = {}
        self._lost: dict[str, _Told] = {}
        """What gateways told that don't tell now: they may have it still."""
        self._unheard_until = -math.inf
        """When the last gateway went that had told nothing. It may have had requests of any service."""
        self._ended: dict[str, float] = {}
        """When each service's last request ended, also at a gateway that is gone."""
        self._untold_since: float | None = -math.inf
        self._arrivals = Arrivals()
        self._arrivals_since = -math.inf
        """Since when all that arrived is known."""

    def begin(self, now: float) -> None:
        """Know nothing: somebody else leads, or did until now."""
        self._expected, self._told, self._lost = frozenset(), {}, {}
        self._untold_since = now
        self._arrivals, self._arrivals_since = Arrivals(), now

    def expect(self, gateways: Iterable[str], now: float) -> None:
        """Know which gateways there are: while one does not tell, not all of a pod's load is known.

        The requests of one that is gone have ended with it.
        """
        before = self._expected | self._told.keys() | self._lost.keys()
        self._expected = frozenset(gateways)
        for gone in before - self._expected:
            told = self._told.pop(gone, None) or self._lost.pop(gone, None)
            if told is None:
                self._unheard_until = now
            else:
                self._ended |= dict.fromkeys(told.num_open, now)
        self._note_silence(now)

    def note(self, gateway: str, line: Any, now: float) -> list[str]:
        """Take in a gateway's next line, parsed, and return the services that have had a request since.

        Raises MalformedLineError, and then takes in nothing.
        """
        before = self._told.get(gateway) or self._lost.get(gateway)
        told = self._told.get(gateway, _Told())
        try:
            num_open = _read_counts(line.get("open", {}))
            changed = _read_counts(line.get("arrived", {}))
            ended = {str(key): now - _read_age(age) for key, age in line.get("ended", {}).items()}
            new = _Told(
                in_flight=_merge(told.in_flight, _read_counts(line.get("in_flight", {}))),
                leaving=frozenset(map(str, line["leaving"])) if "leaving" in line else told.leaving,
                ready=_merge(told.ready or {}, _read_counts(line["ready"]))
                if "ready" in line
                else told.ready,
                num_open=_merge(told.num_open, num_open),
                known=now - _read_age(line["known"]) if "known" in line else told.known,
                arrived=_merge(told.arrived, changed),
                at=now,
            )
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            raise MalformedLineError(f"no line of a gateway: {error}") from error
        self._count_arrivals(before, new, changed)
        self._told[gateway] = new
        self._lost.pop(gateway, None)
        self._ended |= {key: max(end, self._ended.get(key, end)) for key, end in ended.items()}
        self._note_silence(now)
        return [key for key in {**num_open, **ended} if num_open.get(key) or key in ended]

    def lose(self, gateway: str, now: float) -> None:
        """Know that the gateway tells nothing any more. Its next line is a first one."""
        if gateway in self._told:
            self._lost[gateway] = self._told.pop(gateway)
        self._note_silence(now)

    def keep(self, keys: Collection[str]) -> None:
        """Forget the ends and the arrivals of all services but these."""
        self._arrivals.keep(keys)
        self._ended = {key: end for key, end in self._ended.items() if key in keys}

    def read(self, pods: Iterable[str]) -> Mapping[str, PodLoad]:
        """Return the pods' loads, as far as gateways tell."""
        told, since = self._told.values(), self._untold_since
        return {
            uid: PodLoad(
                sum(one.in_flight.get(uid, 0) for one in told),
                since is None and all(uid in one.leaving for one in told),
                since,
                since is not None or all(one.ready is None or uid in one.ready for one in told),
            )
            for uid in pods
        }

    def read_demand(self, key: str) -> Demand:
        """Return what is known of a service's requests, by `<namespace>/<name>`."""
        told, ended = self._told.values(), self._ended.get(key)
        num_open = sum(one.num_open.get(key, 0) for one in told)
        if num_open or self._untold_since is not None:
            return Demand(num_open, None, ended)
        known = max(self._unheard_until, *(one.known for one in told))
        return Demand(0, known if ended is None else max(known, ended), ended)

    def read_arrivals(self, key: str, seconds: float, now: float) -> float | None:
        """Return a service's requests a second in the last so many seconds, None while that is not known."""
        is_silent = self._untold_since is not None and now > self._untold_since + UNTOLD_SECONDS
        if is_silent or not (self._told or self._lost) or self._arrivals_since > now - seconds:
            return None
        return self._arrivals.rate(key, seconds, now)

    def _count_arrivals(self, before: _Told | None, now: _Told, changed: Mapping[str, int]) -> None:
        """Count what has arrived since a gateway told last, or since it began; `changed` is its own line's.

        What one that is older than this leadership had got before its first line is not known.
        """
        if before is None or now.has_restarted(before):
            if now.known < self._arrivals_since:
                self._arrivals_since = now.at
                return
            before = _Told(at=now.known)
        for key, count in changed.items():
            if rise := count - before.arrived.get(key, 0):
                self._arrivals.add(key, rise if rise > 0 else count, before.at, now.at)

    @property
    def num_expected(self) -> int:
        """How many gateways there are."""
        return len(self._expected)

    @property
    def num_silent(self) -> int:
        """How many of them do not tell."""
        return len(self._expected - self._told.keys())

    def _note_silence(self, now: float) -> None:
        """Note since when there is no gateway, or one of them does not tell."""
        is_complete = bool(self._expected) and self._expected <= self._told.keys()
        if is_complete:
            self._untold_since = None
        elif self._untold_since is None:
            self._untold_since = now


def _read_counts(found: Mapping[str, Any]) -> dict[str, int]:
    return {str(name): int(count) for name, count in found.items()}


def _read_age(found: Any) -> float:
    """Return an age in seconds. Raises ValueError for one that cannot be."""
    age = float(found)
    if not 0.0 <= age < math.inf:
        raise ValueError(f"{found} is no age")
    return age


def _merge(before: dict[str, int], changed: Mapping[str, int]) -> dict[str, int]:
    if not changed:
        return before
    return {name: count for name, count in {**before, **changed}.items() if count}


class Arrivals:
    """Owner of the counts. Services go by `<namespace>/<name>`; times are seconds since 1970."""

    def __init__(self) -> None:
        self._seconds: dict[str, defaultdict[int, float]] = {}

    def add(self, key: str, count: float, begin: float, end: float) -> None:
        """Count requests that came between two times, evenly spread over them.

        Where the clock was set back between the two, all came at the end.
        """
        slots = self._seconds.setdefault(key, defaultdict(float))
        first, last = math.floor(min(max(begin, end - KEPT_SECONDS), end)), math.floor(end)
        is_new = last not in slots
        for slot in range(first, last + 1):
            slots[slot] += count / (last + 1 - first)
        if is_new:  # seconds come in order, but for those of a gateway that told late
            while (oldest := next(iter(slots))) < end - KEPT_SECONDS:
                del slots[oldest]

    def keep(self, keys: Collection[str]) -> None:
        """Forget all services but these."""
        self._seconds = {key: slots for key, slots in self._seconds.items() if key in keys}

    def rate(self, key: str, seconds: float, now: float) -> float:
        """Return the requests a second in the last so many seconds."""
        slots: Mapping[int, float] = self._seconds.get(key, {})
        begin = now - seconds
        whole = sum(count for slot, count in slots.items() if begin < slot <= now)
        oldest = math.floor(begin)
        return (whole + slots.get(oldest, 0.0) * (oldest + 1 - begin)) / seconds
