"""How far back queries look, which follows how often replicas are scraped. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

SCRAPES = 4
"""Of a series that a window holds at least: a rate needs two, and one may be lost."""
FRESH_SCRAPES = 3
"""After so many intervals without a sample its source is taken for gone."""
INTERVALS = (5.0, 10.0, 15.0, 30.0, 60.0, 120.0)
"""In seconds, as people write them. Services of one interval share their queries."""
GAPS_KEPT = 40
ROUNDING = 1.1
"""A scrape may be late by that much, and its interval still be the one that was written."""


@dataclass(frozen=True)
class Windows:
    """How far back queries look, in seconds."""

    rate: float = 60.0
    recent: float = 20.0
    latency: float = 60.0
    max_age: float = 15.0
    """Older samples are those of something gone."""


DEFAULT_WINDOWS = Windows()


def fit_windows(interval_seconds: float | None) -> Windows:
    """Return the windows for a scrape interval: the default ones up to 5 s, or while it is not known."""
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
    """How often a service's replicas were scraped, by the times of their samples."""

    latest: Mapping[str, float] = field(default_factory=dict)
    """When each replica's newest sample was taken."""
    gaps: tuple[float, ...] = ()
    """Seconds between two samples of a replica, the newest last."""

    @property
    def interval_seconds(self) -> float | None:
        """Return the time between two scrapes, None before there were two.

        A lost scrape makes a gap twice as long, so of all gaps a short one tells: that of the first quarter.
        """
        return sorted(self.gaps)[len(self.gaps) // 4] if self.gaps else None

    def observe(self, sampled_at: Mapping[str, float]) -> "Cadence":
        """Return the cadence after one more look; `sampled_at` has the newest sample's time by pod."""
        known = self.latest
        gaps = [at - known[pod] for pod, at in sampled_at.items() if pod in known and at > known[pod]]
        return Cadence(dict(sampled_at), (*self.gaps, *gaps)[-GAPS_KEPT:])
