"""Which services have requests, and when each had its last one. Pure."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from millrace_gateway.route.objects import ServiceKey


class Activity:
    """Owner of the counts of this gateway's requests, from their arrival to their end, held ones too."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begin with none. `clock` gives the seconds of a steady clock."""
        self._clock = clock
        self.began = clock()
        """What was before is not known."""
        self.num_changes = 0
        """How often a request has come or gone."""
        self._open: Counter[ServiceKey] = Counter()
        self._arrived: Counter[ServiceKey] = Counter()
        self._ended: dict[ServiceKey, float] = {}

    @contextmanager
    def count_request(self, key: ServiceKey) -> Iterator[None]:
        """Count one request of the service while entered."""
        self._open[key] += 1
        self._arrived[key] += 1
        self.num_changes += 1
        try:
            yield
        finally:
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]
            self._ended[key] = self._clock()
            self.num_changes += 1

    def keep(self, keys: Collection[ServiceKey]) -> None:
        """Forget the ends and the arrivals of all services but these."""
        known = set(keys)
        self._arrived = Counter({key: count for key, count in self._arrived.items() if key in known})
        self._ended = {key: end for key, end in self._ended.items() if key in known}

    def count_open(self) -> dict[str, int]:
        """Return the requests of each service that has some."""
        return {str(key): count for key, count in self._open.items()}

    def count_arrived(self) -> dict[str, int]:
        """Return how many requests each service has got since this gateway began."""
        return {str(key): count for key, count in self._arrived.items()}

    def list_ends(self) -> dict[str, float]:
        """Return when each service's last request ended, by the steady clock."""
        return {str(key): end for key, end in self._ended.items()}
