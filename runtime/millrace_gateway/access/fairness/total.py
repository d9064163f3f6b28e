"""Adds up what the replicas of a service add to its room. Pure. A change of one replica costs the same beside
hundreds: with a look at all of 256, each request took 0.7 ms while others waited.
"""

import math
from typing import NamedTuple

_FINEST = 1024
"""Places are rounded to such fractions."""


class Part(NamedTuple):
    """What one replica adds."""

    is_open: bool
    """Whether it gets more than it has."""
    kept: float
    """Places for what this gateway has there."""
    shared: float
    """Places for the sequences of all gateways."""
    num_elsewhere: int
    """Sequences of other gateways."""
    is_silent: bool
    """Whether it hangs."""
    until: float
    """Later it may add something else, without any news."""


def round_places(places: float) -> float:
    """Return the places of a part. Sums of such numbers are exact, in whatever order."""
    return round(places * _FINEST) / _FINEST


class Total:
    """Owner of the parts, by replica, and of their sums."""

    def __init__(self, parts: dict[str, Part]) -> None:
        self._parts = parts
        self.num_open = sum([part.is_open for part in parts.values()])
        self.kept = sum([part.kept for part in parts.values()])
        self.shared = sum([part.shared for part in parts.values()])
        self.num_elsewhere = sum([part.num_elsewhere for part in parts.values()])
        self.silent = frozenset([uid for uid, part in parts.items() if part.is_silent])
        self.until = min([part.until for part in parts.values()], default=math.inf)
        """Later the sums may be others, without any news."""

    def put(self, uid: str, part: Part) -> bool:
        """Replace one part. Return False if it changes what others add: then all have to be counted again."""
        former = self._parts[uid]
        if part.is_open != former.is_open or part.is_silent != former.is_silent:
            return False
        self._parts[uid] = part
        self.kept += part.kept - former.kept
        self.shared += part.shared - former.shared
        self.num_elsewhere += part.num_elsewhere - former.num_elsewhere
        self.until = min(self.until, part.until)
        return True
