"""How many requests each service got, second by second, from the counters that gateways tell. Pure.

Whoever may be scraped can export a metric that speaks of another tenant's service. The gateways' streams are
read with a proof on both sides, so that decisions rest on them.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping

KEPT_SECONDS = 600
"""More than the longest window."""


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
