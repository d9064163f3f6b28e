"""A bucket that holds a minute's limit, written as what is missing from it. Pure.

`deficit` grows with use and shrinks by the limit a minute. What may be used now is the rest of the limit. The
deficit may exceed the limit: a request used more than was reserved, or other gateways admitted requests
before this one knew. It is then worked off, so that the use of any long time stays within the limit.

A gateway that does not hear some of the others has a share of the limit, and owes the same share of what is
missing. The rest is withheld: the others owe it. It shrinks by their shares, and comes back with them.
"""

SECONDS = 60.0
"""A limit is of so many seconds."""
_ROUNDING = 1e-6
"""Of what is missing: so much less than a request or a token counts as nothing."""


class Bucket:
    """The state of one limit. Times are seconds of a monotonic clock; `share` is above 0, and 1 at most."""

    __slots__ = ("_at", "_deficit", "_withheld", "limit")

    def __init__(self, limit: int, now: float) -> None:
        self.limit = limit
        self._deficit = 0.0
        self._withheld = 0.0
        self._at = now

    def find_deficit(self, now: float, share: float) -> float:
        """Return what is missing from this gateway's share; at least 0."""
        missing = self._deficit - (now - self._at) * self.limit * share / SECONDS
        return missing if missing > _ROUNDING else 0.0

    def find_total(self, now: float, share: float) -> float:
        """Return what is missing from the whole limit; at least 0."""
        rest = self._withheld - (now - self._at) * self.limit * (1.0 - share) / SECONDS
        return self.find_deficit(now, share) + (rest if rest > _ROUNDING else 0.0)

    def find_remaining(self, now: float, share: float) -> float:
        """Return what may be used now; at least 0."""
        return max(0.0, self.limit * share - self.find_deficit(now, share))

    def find_wait(self, amount: float, now: float, share: float) -> float:
        """Return the seconds until the amount fits, if nobody else uses anything; at least 0.

        An amount that is larger than the whole bucket fits into a full one.
        """
        size = self.limit * share
        excess = self.find_deficit(now, share) + min(amount, size) - size
        return excess * SECONDS / size if excess > _ROUNDING else 0.0

    def find_reset(self, now: float, share: float) -> float:
        """Return the seconds until the bucket is full."""
        return self.find_deficit(now, share) * SECONDS / (self.limit * share)

    def add(self, amount: float, now: float, share: float) -> None:
        """Use an amount, or give one back if it is negative."""
        deficit = self.find_deficit(now, share)
        self._withheld = self.find_total(now, share) - deficit if self._withheld else 0.0
        self._deficit, self._at = max(0.0, deficit + amount), now

    def raise_to(self, total: float, now: float, share: float) -> None:
        """Let at least this much be missing from the whole limit."""
        self.add(0.0, now, share)
        more = max(0.0, total - self._deficit - self._withheld)
        self._deficit += more * share
        self._withheld += more * (1.0 - share)

    def divide(self, now: float, share: float, new_share: float) -> None:
        """Go on with another share, of the limit and of what is missing."""
        total = self.find_total(now, share)
        self._deficit, self._withheld, self._at = total * new_share, total * (1.0 - new_share), now
