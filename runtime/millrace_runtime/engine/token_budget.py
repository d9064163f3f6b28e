"""How many tokens of prompts a step may compute beside sequences that decode.

Each of these gets its next token when the step ends. A step that takes up to `--target-inter-token-seconds`
keeps their inter-token latency, and the prompt ends soonest with chunks as large as that allows. How long a
step takes is learned from the steps before it:

    seconds = fixed + decoded * a + decode_reads * b + chunked * c + chunk_pairs * d

The weights are read once a step, whatever it computes. Decodes are limited by the memory that they read, and
chunks of a prompt by arithmetic, so these have coefficients of their own. A chunk's attention grows with its
pairs: of a model with 135 million parameters, on CPUs, a token of a prompt took four times as long after
6,000 others as at the beginning.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from operator import mul

FADING = 0.98
"""The weight of an observation after the next one: about 50 steps count."""
SWEEPS = 2
"""Of the coefficients for each observation. The next ones continue from these, so that few are enough."""
LEAST_EVIDENCE = 1e-100
"""A coefficient stays as it is when the observations about it have faded to less."""
FIRST_SPREAD, LARGEST_SPREAD = 0.1, 0.25
GROWTH = 2
"""A chunk is at most so many times as large as the largest one that was observed."""


@dataclass(slots=True)
class StepWork:
    """The work of a step, as far as its time depends on it."""

    num_decoded: int = 0
    """Tokens of rows that decode, with their drafts."""
    num_decode_reads: int = 0
    """Tokens whose KV these rows read."""
    num_chunked: int = 0
    """Tokens of the chunks of prompts."""
    num_chunk_pairs: int = 0
    """Pairs of a chunk's token and a token that it sees."""

    def add_chunk(self, num_tokens: int, num_read: int) -> None:
        """Add a row of `num_tokens` that reads the KV of `num_read` tokens, these with them."""
        self.num_chunked += num_tokens
        self.num_chunk_pairs += count_pairs(num_tokens, num_read - num_tokens)

    @property
    def features(self) -> tuple[float, ...]:
        """The factors of the coefficients, in the order in which they explain a time.

        Steps that do not yet separate two coefficients count for the first one. So with few observations
        chunks seem costly, and several decodes as cheap as one.
        """
        chunks, decodes = (self.num_chunked, self.num_chunk_pairs), (self.num_decoded, self.num_decode_reads)
        return (*chunks, 1.0, *decodes)


def count_pairs(num_tokens: int, num_before: int) -> int:
    """Return the pairs of a chunk's token and a token that it sees, itself or an earlier one."""
    return num_tokens * num_before + num_tokens * (num_tokens + 1) // 2


class StepTime:
    """Predicts the seconds of a step, and the size of a chunk from its seconds."""

    def __init__(self) -> None:
        self._fit = _RelativeFit(len(StepWork().features))
        self._largest_chunk = 0
        self._square = FIRST_SPREAD**2

    @property
    def spread(self) -> float:
        """How far steps with chunks beside decodes are from their prediction: a part of it, 0.25 at most."""
        return min(sqrt(self._square), LARGEST_SPREAD)

    def observe(self, work: StepWork, seconds: float) -> None:
        """Learn from a step's time. A time of 0 or less says nothing."""
        if seconds <= 0.0:
            return
        if work.num_decoded and work.num_chunked and self._largest_chunk:
            error = min(abs(seconds / max(self.predict(work), 1e-9) - 1), 2 * LARGEST_SPREAD)
            self._square = FADING * self._square + (1 - FADING) * error**2
        self._fit.observe(work.features, seconds)
        self._largest_chunk = max(self._largest_chunk, work.num_chunked)

    def predict(self, work: StepWork) -> float:
        """Return the seconds of a step; 0 before the first observation."""
        return self._fit.predict(work.features)

    def fit_chunk(self, seconds: float, num_before: int) -> int:
        """Return the most tokens after `num_before` others that a chunk computes in `seconds`.

        0 if no chunk was observed; at most twice the largest one that was.
        """
        per_token, per_pair, *_ = self._fit.coefficients
        linear, most = per_token + per_pair * (num_before + 0.5), GROWTH * self._largest_chunk
        # per_pair / 2 * n**2 + linear * n = seconds
        root = sqrt(linear**2 + 2 * per_pair * max(seconds, 0.0))
        return most if (linear + root) * most <= 2 * seconds else int(2 * seconds / (linear + root))


class _RelativeFit:
    """Least squares of relative errors without negative coefficients, in which old observations fade.

    An error counts as a part of the prediction. Beyond twice the prediction it counts as a part of the value:
    a step that waits for a compilation changes little, and a machine that becomes slower is followed. A value
    below half of the prediction counts as that half.
    """

    def __init__(self, num_features: int) -> None:
        self.coefficients = [0.0] * num_features
        self._products = [[0.0] * num_features for _ in range(num_features)]
        self._sums = [0.0] * num_features

    def predict(self, features: Sequence[float]) -> float:
        return float(sum(map(mul, features, self.coefficients)))

    def observe(self, features: Sequence[float], value: float) -> None:
        predicted = self.predict(features)
        value = max(value, predicted / 2)
        scale = 1 / predicted if predicted / 2 < value < predicted * 2 else 1 / value
        weighted = [feature * scale for feature in features]
        for number, row in enumerate(self._products):
            factor = weighted[number]
            self._products[number] = [
                FADING * old + factor * other for old, other in zip(row, weighted, strict=True)
            ]
            self._sums[number] = FADING * self._sums[number] + factor * value * scale
        for _ in range(SWEEPS):
            self._sweep()

    def _sweep(self) -> None:
        """Set each coefficient to its best value beside the others.

        Coefficients that no observation separates keep their values: hours of decodes leave a chunk's.
        """
        for number, row in enumerate(self._products):
            if row[number] > LEAST_EVIDENCE:
                error = self._sums[number] - sum(map(mul, row, self.coefficients))
                self.coefficients[number] = max(0.0, self.coefficients[number] + error / row[number])


LEAST_SHARE = 0.25
"""A chunk may take at least so much of the time that its step takes without it."""


class TokenBudget:
    """Keeps steps with decodes within a target, as far as they can.

    Where the decodes alone take as long as the target or longer, a chunk makes each step a quarter longer. So
    a long prompt ends whatever the target is, five or six times as late as alone.
    """

    def __init__(self, target_seconds: float) -> None:
        self._target_seconds = target_seconds
        self._step_time = StepTime()

    def observe(self, work: StepWork, seconds: float) -> None:
        """Learn from a step."""
        self._step_time.observe(work, seconds)

    def limit_chunk(self, work: StepWork, num_before: int) -> int:
        """Return the most tokens of prompts, at least 1, beside `work`, the step's decodes.

        The first of them comes after `num_before` tokens of its prompt. The aim is below the target by the
        error that predictions usually have.
        """
        without = self._step_time.predict(work)
        aim = self._target_seconds / (1 + self._step_time.spread)
        seconds = max(aim - without, LEAST_SHARE * without)
        return max(self._step_time.fit_chunk(seconds, num_before), 1)
