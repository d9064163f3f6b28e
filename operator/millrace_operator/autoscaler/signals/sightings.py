"""When each replica was seen last, and by whose scrape. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

NAMED = 3
"""Pods that a sentence names; the others are counted."""


class Sighting(NamedTuple):
    """A sample of a replica."""

    pod: str
    source: str
    """Whose scrape it is of: two jobs, or a pair of Prometheis, may each scrape the same pod."""
    at: float
    """In seconds since 1970."""


@dataclass(frozen=True)
class Sightings:
    """The newest sample's time of each replica, by pod and source.

    It outlives the series: a failed scrape ends them in Prometheus at once, and the sample before is still
    fresh.
    """

    times: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def observe(self, seen: Iterable[Sighting], pods: Collection[str]) -> "Sightings":
        """Return the sightings after one more look. Pods that are not among these are forgotten."""
        times = {pod: dict(self.times.get(pod, {})) for pod in pods}
        for sighting in seen:
            if sighting.pod in times:
                sources = times[sighting.pod]
                sources[sighting.source] = max(sighting.at, sources.get(sighting.source, sighting.at))
        return Sightings({pod: sources for pod, sources in times.items() if sources})

    @property
    def newest(self) -> dict[str, float]:
        """When the newest sample of each pod was taken, whoever took it."""
        return {pod: max(sources.values()) for pod, sources in self.times.items()}

    def by_one_source(self, max_age: float) -> dict[str, float]:
        """Return when one source took its newest sample of each pod: always the same while it goes on.

        Those of all sources together are closer than the interval of any.
        """
        found = {}
        for pod, sources in self.times.items():
            oldest = max(sources.values()) - max_age
            found[pod] = next(at for _, at in sorted(sources.items()) if at >= oldest)
        return found

    def describe(self, silent: Iterable[str], max_age: float) -> str:
        """Return a sentence that names silent pods, with since when."""
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
