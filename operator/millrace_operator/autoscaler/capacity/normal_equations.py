"""Normal equations of a least squares fit in three unknowns, with forgetting in one direction. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

RIDGE = 1e-3
"""A part of each regressor's own size. As a part of the largest one's it hid the empty step behind long
contexts: the ramp of `simulate/test_workloads.py`, measured once by hand, took 7.8 replicas on average, not
6.2."""
TINY = 1e-9
"""Keeps the matrix regular if no sample had a regressor."""
SCALES = (1.0, 16.0, 4096.0)
"""Typical regressors, by which the ridge weighs the three alike."""

Row = tuple[float, float, float]
Matrix = tuple[Row, Row, Row]
NOTHING: Matrix = ((0.0,) * 3,) * 3


def find_row(tokens: float, context_tokens: float, seconds: float) -> Row:
    """Return a step's regressors, relative to its time."""
    return 1.0 / seconds, tokens / SCALES[1] / seconds, context_tokens / SCALES[2] / seconds


class NormalEquations(NamedTuple):
    """The samples in sum: the gram matrix of their regressors, and the regressors times the measurements."""

    gram: Matrix = NOTHING
    moment: Row = (0.0, 0.0, 0.0)

    def add(self, x: Row, weight: float) -> "NormalEquations":
        """Return the equations with one more sample, whose regressors are relative to its measurement."""
        rows = [tuple(self.gram[i][j] + weight * x[i] * x[j] for j in range(3)) for i in range(3)]
        moment = tuple(self.moment[i] + weight * x[i] for i in range(3))
        return NormalEquations((rows[0], rows[1], rows[2]), moment)  # type: ignore[arg-type]

    def forget(self, x: Row, part: float) -> "NormalEquations":
        """Return the equations without a part of their information in direction x; their solution stays.

        R - part · R x xᵀ R / (xᵀ R x), and the moment alike: see Cao and Schwartz, A directional forgetting
        algorithm based on the decomposition of the information matrix, Automatica 36 (2000).
        """
        gram, moment = self
        along = [sum(gram[i][j] * x[j] for j in range(3)) for i in range(3)]
        known = sum(along[i] * x[i] for i in range(3))
        if known <= 0:
            return self
        rate = part / known
        removed = rate * sum(moment[i] * x[i] for i in range(3))
        rows = [tuple(gram[i][j] - rate * along[i] * along[j] for j in range(3)) for i in range(3)]
        moment = tuple(moment[i] - removed * along[i] for i in range(3))  # type: ignore[assignment]
        return NormalEquations((rows[0], rows[1], rows[2]), moment)  # type: ignore[arg-type]

    def solve(self) -> list[float]:
        """Return coefficients of zero or more: the most negative one is dropped until none is negative."""
        regular = self._regularise()
        active = [0, 1, 2]
        solution = [0.0, 0.0, 0.0]
        while active:
            part = _solve([[regular[i][j] for j in active] for i in active], [self.moment[i] for i in active])
            if min(part) >= 0:
                for index, value in zip(active, part, strict=True):
                    solution[index] = value
                break
            del active[part.index(min(part))]
        return solution

    def find_spread(self, x: Row) -> float:
        """Return xᵀ(G + ridge)⁻¹x: the variance of a prediction at x, for samples with a variance of one."""
        return sum(one * other for one, other in zip(x, _solve(self._regularise(), x), strict=True))

    def _regularise(self) -> list[list[float]]:
        return [
            [value + (RIDGE * row[i] + TINY if i == j else 0.0) for j, value in enumerate(row)]
            for i, row in enumerate(self.gram)
        ]


def find_coefficients(gram: Matrix, moment: Row) -> Row:
    """Return the coefficients by which the regressors give a step's seconds."""
    scaled = NormalEquations(gram, moment).solve()
    return scaled[0], scaled[1] / SCALES[1], scaled[2] / SCALES[2]


def _solve(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """Return the solution by Gaussian elimination; the ridge keeps the matrix regular."""
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
