"""How often replicas are scraped, when each was seen last, and how far back queries look. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import median_low
from typing import NamedTuple

NAMED = 3
"""The pods that a sentence names; the others are counted."""
SCRAPES = 4
"""The least number of scrapes in a window: a rate needs two, and one may be lost."""
FRESH_SCRAPES = 3
"""After so many intervals without a sample its replica counts as silent."""
INTERVALS = (5.0, 10.0, 15.0, 30.0, 60.0, 120.0)
"""In seconds, as people configure them. Services of one interval share their queries."""
GAPS_KEPT = 8
"""The gaps kept for each replica."""
AGREEING = 4
"""So many equal gaps in a row are the interval, however short earlier ones were."""
ROUNDING = 1.1
"""A scrape may be late by this factor and still have the configured interval."""


class Sighting(NamedTuple):
    """A sample of a replica."""

    pod: str
    source: str
    """The source of its scrape: two jobs, or a pair of Prometheus servers, may each scrape the same pod."""
    at: float
    """In seconds since 1970."""


@dataclass(frozen=True)
class Sightings:
    """The newest sample's time of each replica, by pod and source.

    It outlives the series: a failed scrape ends them in Prometheus at once, while the sample before is still
    fresh.
    """

    times: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def observe(self, seen: Iterable[Sighting], pods: Collection[str]) -> "Sightings":
        """Return the sightings of these pods after one more look. Other pods are forgotten."""
        times = {pod: dict(self.times.get(pod, {})) for pod in pods}
        for sighting in seen:
            if sighting.pod in times:
                sources = times[sighting.pod]
                sources[sighting.source] = max(sighting.at, sources.get(sighting.source, sighting.at))
        return Sightings({pod: sources for pod, sources in times.items() if sources})

    @property
    def newest(self) -> dict[str, float]:
        """When the newest sample of each pod was taken, by any source."""
        return {pod: max(sources.values()) for pod, sources in self.times.items()}

    def by_one_source(self, max_age: float) -> dict[str, float]:
        """Return when one source took its newest sample of each pod: always the same source while it goes on.

        Samples of all sources together are closer than the interval of any one.
        """
        found = {}
        for pod, sources in self.times.items():
            oldest = max(sources.values()) - max_age
            found[pod] = next(at for _, at in sorted(sources.items()) if at >= oldest)
        return found

    def describe(self, silent: Iterable[str], max_age: float) -> str:
        """Return a sentence that names silent pods, each with its last sample's time."""
        pods = sorted(silent)
        named = [self._name(pod) for pod in pods[:NAMED]]
        if len(pods) > NAMED:
            named.append(f"{len(pods) - NAMED} more")
        *first, last = named
        listed = f"{', '.join(first)} and {last}" if first else last
        return f"no samples of the last {max_age:g} s of {listed}"

    def _name(self, pod: str) -> str:
        at = self.newest.get(pod)
        if at is None:
            return f"{pod} (none so far)"
        return f"{pod} (none since {datetime.fromtimestamp(at, UTC):%H:%M:%S} UTC)"


NEVER_SEEN = Sightings()


@dataclass(frozen=True)
class Windows:
    """How far back queries look, in seconds."""

    rate: float = 60.0
    recent: float = 20.0
    latency: float = 60.0
    max_age: float = 15.0
    """A replica whose newest sample is older counts as silent."""


DEFAULT_WINDOWS = Windows()


def fit_windows(interval_seconds: float | None) -> Windows:
    """Return the windows for a scrape interval: the default ones up to 5 s, or while it is unknown."""
    usual = next(
        (usual for usual in INTERVALS if (interval_seconds or 0.0) <= ROUNDING * usual), INTERVALS[-1]
    )
    return Windows(
        rate=max(DEFAULT_WINDOWS.rate, SCRAPES * usual),
        recent=max(DEFAULT_WINDOWS.recent, SCRAPES * usual),
        latency=max(DEFAULT_WINDOWS.latency, SCRAPES * usual),
        max_age=max(DEFAULT_WINDOWS.max_age, FRESH_SCRAPES * usual),
    )


@dataclass(frozen=True)
class Cadence:
    """The scrape interval of a service's replicas, from the times of their samples.

    It follows a shorter interval after two gaps, and a longer one after four. One gap that is too short, as
    when the other one of a pair of Prometheus servers answers, changes nothing, and neither do lost scrapes.
    """

    latest: Mapping[str, float] = field(default_factory=dict)
    """When each replica's newest sample was taken."""
    gaps: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Seconds between two samples of a replica, the newest last."""
    last_seconds: float | None = None
    """The last known interval, which a new replica will have, too."""

    @property
    def interval_seconds(self) -> float | None:
        """The time between two scrapes; None before there were two.

        After many lost scrapes a replica's own estimate may be too long. So the median of all replicas
        counts.
        """
        found = [_find_interval(gaps) for gaps in self.gaps.values() if gaps]
        return median_low(found) if found else self.last_seconds

    def is_new(self, pod: str, sampled_at: Mapping[str, float]) -> bool:
        """Whether this replica has been scraped since the last look, or that is unknown."""
        at = sampled_at.get(pod)
        return at is None or at != self.latest.get(pod)

    def observe(self, sampled_at: Mapping[str, float]) -> "Cadence":
        """Return the cadence after one more look; `sampled_at` has the newest sample's time by pod."""
        gaps = {pod: self._gaps_until(pod, at) for pod, at in sampled_at.items()}
        return Cadence(dict(sampled_at), gaps, self.interval_seconds) if gaps else self

    def _gaps_until(self, pod: str, at: float) -> tuple[float, ...]:
        known, gaps = self.latest.get(pod), self.gaps.get(pod, ())
        return (*gaps, at - known)[-GAPS_KEPT:] if known is not None and at > known else gaps


def _find_interval(gaps: Sequence[float]) -> float:
    """Return the interval from the gaps between a replica's samples.

    A lost scrape makes a gap at least twice as long, so short gaps count: the second shortest, because one
    may be too short by chance. If the last gaps are all equal, they are the interval.
    """
    newest = gaps[-AGREEING:]
    if len(newest) == AGREEING and max(newest) <= ROUNDING * min(newest):
        return median_low(newest)
    return sorted(gaps)[1 if len(gaps) >= AGREEING else 0]
