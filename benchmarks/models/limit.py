"""How many bytes a second all connections of a server have together. Pure."""

BURST_SECONDS = 0.01
"""Of the rate that an idle moment saves up."""


class Limit:
    """Books the time that bytes take, one after another."""

    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._free_at = 0.0

    def book(self, num_bytes: int, now: float) -> float:
        """Return the seconds to wait before these bytes are sent."""
        begin = max(now - BURST_SECONDS, self._free_at)
        self._free_at = begin + num_bytes / self._bytes_per_second
        return max(0.0, begin - now)
