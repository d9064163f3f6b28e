"""How many tokens to guess: a pure decision from what was right so far, and from what a token costs.

Guesses are worth their cost while the step with them brings more tokens a second than the step without. That
is so for one sequence on a device that waits for the weights, and for a full step only where nearly all
guesses are right.
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
    """One sequence's pace."""

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
