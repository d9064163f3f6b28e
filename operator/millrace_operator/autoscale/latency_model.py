"""Step time of a replica, T = α + β·tokens + γ·context tokens, fitted online from its histograms.

Tokens are those computed in a step. A decoding sequence computes one, so on decode-only steps this is
α + β·batch + γ·batch·context; prefilled tokens cost β each beside. Means over a window obey the
same equation as single steps because it is linear. Recursive least squares on relative errors with
forgetting, a ridge that keeps unseen directions at zero, and non-negative coefficients.
"""

from dataclasses import dataclass, field

from millrace_operator.autoscale.observation import StepMoments

FORGETTING = 0.99
RIDGE = 1e-3
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

    def predict(self, tokens: float, context_tokens: float) -> float:
        """Seconds of a step."""
        return self.alpha + self.beta * tokens + self.gamma * context_tokens

    def learn(self, moments: StepMoments) -> "LatencyModel":
        """The model after one more sample; samples of few steps are left out."""
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
        return self._absorb(moments, known)

    def _absorb(self, moments: StepMoments, error: float | None) -> "LatencyModel":
        regressors = (1.0, moments.tokens / SCALES[1], moments.context_tokens / SCALES[2])
        x = [value / moments.seconds for value in regressors]
        gram = tuple(tuple(FORGETTING * self.gram[i][j] + x[i] * x[j] for j in range(3)) for i in range(3))
        moment = tuple(FORGETTING * self.moment[i] + x[i] for i in range(3))
        scaled = _solve_non_negative(gram, moment)
        coefficients = (scaled[0], scaled[1] / SCALES[1], scaled[2] / SCALES[2])
        return LatencyModel(gram, moment, self.num_samples + 1, error, coefficients)  # type: ignore[arg-type]


def _solve_non_negative(gram: tuple[tuple[float, ...], ...], moment: tuple[float, ...]) -> list[float]:
    """Least squares with the most negative coefficient dropped until none is negative."""
    ridge = RIDGE * max(gram[i][i] for i in range(3))
    active = [0, 1, 2]
    solution = [0.0, 0.0, 0.0]
    while active:
        part = _solve([[gram[i][j] + (ridge if i == j else 0.0) for j in active] for i in active],
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
