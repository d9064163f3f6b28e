"""A limit on the rate of writes, so that a storm of changes spares the API server."""

import math


class TokenBucket:
    """Grants writes at `rate` a second with bursts of `burst`; time is an argument."""

    def __init__(self, rate: float, burst: int, now: float) -> None:
        if rate <= 0 or burst < 1:
            raise ValueError(f"a rate above 0 and a burst of at least 1 are needed, got {rate} and {burst}")
        self._rate = rate
        self._burst = burst
        self._tokens = float(burst)
        self._updated = now
        self._paused_until = -math.inf

    def pause(self, until: float) -> None:
        """Grant nothing until then: the API server asks for it."""
        self._paused_until = max(self._paused_until, until)

    def pause_left(self, now: float) -> float:
        """Return how many seconds of a pause are left; 0 where there is none."""
        return max(0.0, self._paused_until - now)

    def reserve(self, now: float) -> float:
        """Take one token and return the seconds to wait before using it."""
        elapsed = max(0.0, now - self._updated)
        self._tokens = min(float(self._burst), self._tokens + elapsed * self._rate) - 1
        self._updated = max(now, self._updated)
        return max(-self._tokens / self._rate, self.pause_left(now))
