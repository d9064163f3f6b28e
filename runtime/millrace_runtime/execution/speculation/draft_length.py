"""How many tokens to guess: a pure decision from the accepted guesses so far, and from a token's cost.

Guesses are worth their cost while the step with them brings more tokens a second than the step without. That
is so for one sequence on a device that waits for the weights, and for a full step only where nearly all
guesses are right. What one more token of a step costs is measured: processors and number types differ
tenfold.
"""

from dataclasses import dataclass

FIRST_ACCEPTANCE = 0.3
"""The belief about a sequence that has not guessed: enough for one guess at a time, until some were right."""
WEIGHT = 0.2
"""Of a new guess in the mean."""
FIRST_REST, LONGEST_REST = 32, 256
"""Draws between two trials of a sequence whose guesses are not worth it: each rest is twice the last one."""
LEAST_GAIN = 1.25
"""A sequence tries only where right guesses would bring so many times the tokens: not in a full step."""


def measure_best(cost: float, num_rows: int, most: int, depth: int = 1) -> float:
    """Return how many times the tokens a second `most` guesses would bring if all were right."""
    alone = 1 + cost * (num_rows - 1)
    return (most + 1) / depth * alone / (1 + cost * (num_rows * (most + 1) - 1))


def choose_length(acceptance: float, cost: float, num_rows: int, most: int, depth: int = 1) -> int:
    """Return the number of guesses, 0 to `most`, that brings the most tokens a second.

    `acceptance` is the probability that a guess is right if those before it are, for each of `num_rows` rows
    that decode. `cost` is the time of one more token of a step, over the time of a step of one token. With
    `depth` steps in flight a sequence that guesses has a row in one of so many.
    """
    best, best_rate, expected = 0, 0.0, 0.0
    for count in range(most + 1):
        expected += acceptance**count
        rate = expected / (1 + cost * (num_rows * (count + 1) - 1))
        if count:
            rate /= depth
        if rate > best_rate:
            best, best_rate = count, rate
    return best


@dataclass(slots=True)
class Pace:
    """How often one sequence's guesses are right, and how long it rests between trials."""

    acceptance: float = FIRST_ACCEPTANCE
    """An exponential mean over guesses, without those after the first wrong one: they prove nothing."""
    rest: int = FIRST_REST
    num_rested: int = 0
    """Draws since the last trial, while guesses are not worth their cost."""

    def note(self, num_guessed: int, num_accepted: int) -> None:
        """Note a verified draft."""
        for number in range(min(num_guessed, num_accepted + 1)):
            self.acceptance += WEIGHT * ((number < num_accepted) - self.acceptance)
        if num_accepted:
            self.rest = FIRST_REST
        elif self.num_rested >= self.rest:
            self.rest = min(2 * self.rest, LONGEST_REST)
        self.num_rested = 0

    def choose(self, cost: float, num_rows: int, most: int, depth: int = 1) -> int:
        """Return the most guesses after the next draw, as `choose_length`; after a rest 1, as a trial."""
        if length := choose_length(self.acceptance, cost, num_rows, most, depth):
            return length
        self.num_rested += 1
        may_try = self.num_rested >= self.rest and measure_best(cost, num_rows, most, depth) >= LEAST_GAIN
        return min(1, most) if may_try else 0


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
        """Learn from a step that only decodes, with its drafts."""
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
