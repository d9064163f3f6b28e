"""A bucket that holds a minute's limit, written as what is missing from it. Pure.

`deficit` grows with use and shrinks by the limit a minute. What may be used now is the rest of the limit. The
deficit may exceed the limit: a request used more than was reserved, or other gateways admitted requests
before this one knew. It is then worked off, so that the use of any long time stays within the limit.

A gateway that does not hear some of the others has a share of the limit, and owes the same share of what is
missing. The rest is withheld: the others owe it. It shrinks by their shares, and is added again when this
gateway hears them.
"""

SECONDS = 60.0
"""A limit is per this many seconds."""
_ROUNDING = 1e-6
"""A deficit of so little of a request or of a token counts as 0."""


class Bucket:
    """The state of one limit. Times are seconds of a monotonic clock; `share` is above 0, and 1 at most.

    Each request passes here several times, so what is missing is brought to the present once, by `advance`.
    """

    __slots__ = ("_at", "_withheld", "deficit", "limit", "worked_off")

    def __init__(self, limit: int, now: float) -> None:
        self.limit = limit
        self.deficit = 0.0
        """What is missing from this gateway's share at the last `advance`; at least 0."""
        self.worked_off = 0.0
        """What time has given back of this gateway's share since the start."""
        self._withheld = 0.0
        self._at = now

    def advance(self, now: float, share: float) -> None:
        """Bring the state to this time."""
        minutes = (now - self._at) / SECONDS
        if minutes > 0.0:
            self._at = now
            if self.deficit:
                missing = self.deficit - minutes * self.limit * share
                missing = missing if missing > _ROUNDING else 0.0
                self.worked_off += self.deficit - missing
                self.deficit = missing
            if self._withheld:
                missing = self._withheld - minutes * self.limit * (1.0 - share)
                self._withheld = missing if missing > _ROUNDING else 0.0

    @property
    def total(self) -> float:
        """What is missing from the whole limit; at least 0."""
        return self.deficit + self._withheld

    def find_remaining(self, share: float) -> float:
        """Return what may be used now; at least 0."""
        return max(0.0, self.limit * share - self.deficit)

    def find_wait(self, amount: float, share: float) -> float:
        """Return the seconds until the amount fits, if nobody else uses anything; at least 0.

        An amount that is larger than the whole bucket fits into a full one.
        """
        size = self.limit * share
        if self.deficit + amount <= size:
            return 0.0
        excess = self.deficit + min(amount, size) - size
        return excess * SECONDS / size if excess > _ROUNDING else 0.0

    def find_reset(self, share: float) -> float:
        """Return the seconds until the bucket is full."""
        return self.deficit * SECONDS / (self.limit * share)

    def add(self, amount: float) -> None:
        """Use an amount, or give one back if it is negative."""
        self.deficit += amount
        if amount < 0:
            self.deficit = max(0.0, self.deficit)

    def raise_to(self, total: float, share: float) -> None:
        """Raise what is missing from the whole limit to at least `total`."""
        more = max(0.0, total - self.total)
        self.deficit += more * share
        self._withheld += more * (1.0 - share)

    def divide(self, share: float) -> None:
        """Change this gateway's share of the limit and of what is missing."""
        total = self.total
        self.deficit, self._withheld = total * share, total * (1.0 - share)
