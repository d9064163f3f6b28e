"""What one more token of a step costs: measured, because processors and number types differ tenfold."""

FADING = 0.98
"""The weight of a step against the step after it: the last fifty count."""
FIRST_COST = 0.1
"""At first: that of 135M weights in bfloat16 on two AVX2 cores, from 1 to 5 tokens. In 4 bits it is 0.5."""
TRUST = 20.0
"""How many steps, a token more or less than the others, weigh as much as FIRST_COST."""
NUM_SLOW = 8
"""The first steps page in weights, and say nothing."""
MOST_SURPRISE = 2.0
"""A step counts with at most so many times its expected time: another process may have had the processor."""


class TokenCost:
    """Fits seconds = base + slope · tokens to decode steps, with fading weights."""

    def __init__(self) -> None:
        self._num_slow = NUM_SLOW
        self._weight = self._tokens = self._seconds = 0.0
        self._variance = self._covariance = 0.0
        """Of tokens, and of tokens and seconds: sums over steps."""

    @property
    def relative(self) -> float:
        """The time of one more token, over that of a step of one token; more than 0 and at most 1."""
        if not self._weight:
            return FIRST_COST
        slope = self._slope
        return min(1.0, max(1e-3, slope / max(self._predict(1.0), slope)))

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Take in a step that only decodes, with its drafts."""
        if self._num_slow:
            self._num_slow -= 1
            return
        if self._weight:
            seconds = min(seconds, MOST_SURPRISE * self._predict(num_tokens))
        self._weight = self._weight * FADING + 1
        self._variance *= FADING
        self._covariance *= FADING
        # Welford's update, with weights.
        away = num_tokens - self._tokens
        self._tokens += away / self._weight
        self._seconds += (seconds - self._seconds) / self._weight
        self._variance += away * (num_tokens - self._tokens)
        self._covariance += away * (seconds - self._seconds)

    def _predict(self, num_tokens: float) -> float:
        return max(0.0, self._seconds + self._slope * (num_tokens - self._tokens))

    @property
    def _slope(self) -> float:
        """Seconds a token, at least 0."""
        first = FIRST_COST * self._seconds / (1 + FIRST_COST * (self._tokens - 1))
        slope = (self._covariance + TRUST * first) / (self._variance + TRUST)
        return max(0.0, slope)
