"""Step time of a replica, T = α + β·tokens + γ·context tokens, fitted online from its histograms.

Tokens are those computed in a step. A decoding sequence computes one, so on decode-only steps this is
α + β·batch + γ·batch·context; prefilled tokens cost β each beside. Means over a window obey the
same equation as single steps because it is linear. Recursive least squares on relative errors, with a
ridge that keeps unseen directions at zero, and non-negative coefficients.

Forgetting is directional, after Kulhavý: new data replace what is known in their own direction only. So a
night of idle steps, which tell α alone, leaves β and γ as the day has taught them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from millrace_operator.autoscale.observation import StepMoments

FORGETTING = 0.01
"""The part of what is known in a direction that one whole sample there replaces."""
RIDGE = 1e-3
"""Of each regressor's own size. Of the largest one's it hid the empty step behind long contexts. The ramp of
`tests/operator/autoscale/test_workloads.py`, measured once by hand, took 7.8 replicas on average, not 6.2."""
TINY = 1e-9
"""Keeps the matrix regular where a regressor was never seen."""
SCALES = (1.0, 16.0, 4096.0)
"""Typical regressors, by which the ridge weighs the three alike."""
MIN_STEPS = 5
MIN_SAMPLES = 5
MAX_RELATIVE_ERROR = 0.35

Row = tuple[float, float, float]
Matrix = tuple[Row, Row, Row]


@dataclass(frozen=True)
class LatencyModel:
    """The fit so far: the normal equations and how well they predicted what came."""

    gram: Matrix = ((0.0,) * 3,) * 3
    moment: Row = (0.0, 0.0, 0.0)
    num_samples: int = 0
    relative_error: float | None = None
    """Mean relative error of predictions made before each sample was learned."""
    coefficients: Row = field(default=(0.0, 0.0, 0.0))

    @property
    def alpha(self) -> float:
        """Seconds of an empty step."""
        return self.coefficients[0]

    @property
    def beta(self) -> float:
        """Seconds a computed token."""
        return self.coefficients[1]

    @property
    def gamma(self) -> float:
        """Seconds a context token."""
        return self.coefficients[2]

    @property
    def is_fitted(self) -> bool:
        """Whether the fit may be planned with."""
        return (
            self.num_samples >= MIN_SAMPLES
            and self.relative_error is not None
            and self.relative_error <= MAX_RELATIVE_ERROR
            and sum(self.coefficients) > 0
        )

    def describe_doubt(self) -> str | None:
        """Say why the fit may not be planned with; None where it may."""
        if self.is_fitted:
            return None
        error = self.relative_error
        if self.num_samples < MIN_SAMPLES or error is None:
            return f"the latency model is not fitted yet ({self.num_samples} of {MIN_SAMPLES} samples)"
        found, most = math.ceil(100 * error), round(100 * MAX_RELATIVE_ERROR)
        return f"the latency model does not fit: it is {found} % off, and {most} % may be planned with"

    def predict(self, tokens: float, context_tokens: float) -> float:
        """Seconds of a step."""
        return self.alpha + self.beta * tokens + self.gamma * context_tokens

    def learn(
        self, moments: StepMoments, *, weight: float = 1.0, forgetting: float | None = None
    ) -> "LatencyModel":
        """The model after one more sample; samples of few steps are left out.

        `weight` is the part of the sample that is new: windows overlap. `forgetting` is the part of what is
        known in its direction that it replaces; without it `weight` times FORGETTING.
        """
        if moments.num_steps < MIN_STEPS or moments.seconds <= 0:
            return self
        error = abs(self.predict(moments.tokens, moments.context_tokens) - moments.seconds) / moments.seconds
        known = self.relative_error
        if self.num_samples < 2:
            known = None
        elif known is None:
            known = error
        else:
            known += 0.15 * (min(error, 2.0) - known)
        return self._absorb(moments, known, weight, weight * FORGETTING if forgetting is None else forgetting)

    def _absorb(
        self, moments: StepMoments, error: float | None, weight: float, forgetting: float
    ) -> "LatencyModel":
        regressors = (1.0, moments.tokens / SCALES[1], moments.context_tokens / SCALES[2])
        x = [value / moments.seconds for value in regressors]
        kept = _forget(self.gram, self.moment, x, forgetting)
        gram = tuple(tuple(kept.gram[i][j] + weight * x[i] * x[j] for j in range(3)) for i in range(3))
        moment = tuple(kept.moment[i] + weight * x[i] for i in range(3))
        scaled = _solve_non_negative(gram, moment)
        coefficients = (scaled[0], scaled[1] / SCALES[1], scaled[2] / SCALES[2])
        return LatencyModel(gram, moment, self.num_samples + 1, error, coefficients)  # type: ignore[arg-type]


class _Normal(NamedTuple):
    """Normal equations."""

    gram: Matrix
    moment: Row


def _forget(gram: Matrix, moment: Row, x: Sequence[float], part: float) -> _Normal:
    """Return the equations without a part of what they say of direction x; their solution stays.

    R - part · R x xᵀ R / (xᵀ R x), and the moment alike: see Cao and Schwartz, A directional forgetting
    algorithm based on the decomposition of the information matrix, Automatica 36 (2000).
    """
    along = [sum(gram[i][j] * x[j] for j in range(3)) for i in range(3)]
    known = sum(along[i] * x[i] for i in range(3))
    if known <= 0:
        return _Normal(gram, moment)
    rate = part / known
    told = rate * sum(moment[i] * x[i] for i in range(3))
    rows = [tuple(gram[i][j] - rate * along[i] * along[j] for j in range(3)) for i in range(3)]
    return _Normal((rows[0], rows[1], rows[2]), tuple(moment[i] - told * along[i] for i in range(3)))  # type: ignore[arg-type]


def _solve_non_negative(gram: tuple[tuple[float, ...], ...], moment: tuple[float, ...]) -> list[float]:
    """Least squares with the most negative coefficient dropped until none is negative."""
    ridge = [RIDGE * gram[i][i] + TINY for i in range(3)]
    active = [0, 1, 2]
    solution = [0.0, 0.0, 0.0]
    while active:
        part = _solve([[gram[i][j] + (ridge[i] if i == j else 0.0) for j in active] for i in active],
                      [moment[i] for i in active])  # fmt: skip
        if min(part) >= 0:
            for index, value in zip(active, part, strict=True):
                solution[index] = value
            break
        del active[part.index(min(part))]
    return solution


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gaussian elimination; the ridge keeps the matrix regular."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    size = len(rows)
    for i in range(size):
        pivot = max(range(i, size), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for r in range(i + 1, size):
            factor = rows[r][i] / rows[i][i]
            rows[r] = [value - factor * upper for value, upper in zip(rows[r], rows[i], strict=True)]
    solution = [0.0] * size
    for i in reversed(range(size)):
        known = sum(rows[i][j] * solution[j] for j in range(i + 1, size))
        solution[i] = (rows[i][size] - known) / rows[i][i]
    return solution
