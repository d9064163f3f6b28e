"""Step time of a replica, T = α + β·tokens + γ·context tokens, fitted online from its histograms.

Tokens are those computed in a step. A decoding sequence computes one, so on decode-only steps this is
α + β·batch + γ·batch·context; each prefilled token costs β more. Means over a window obey the same linear
equation as single steps. The fit is recursive least squares on relative errors, with a ridge.

Forgetting is directional, after Kulhavý: new data replace old knowledge in their own direction only. So a
night of idle steps, which hold information about α alone, leaves β and γ as the day has taught them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from millrace_operator.autoscaler.capacity.normal_equations import (
    NOTHING,
    Matrix,
    NormalEquations,
    Row,
    find_coefficients,
    find_row,
)
from millrace_operator.autoscaler.signals.observation import StepMoments, TrialStep

FORGETTING = 0.01
"""The part of the knowledge in a direction that one whole sample there replaces."""
KEPT_IN_DOUBT = 0.05
"""The part of the knowledge that stays after a change of the replicas: five samples of a hundred."""
LEAST_BETWEEN_DOUBTS = 50.0
"""Windows of steps."""
LARGEST_CHANGE = 10.0
"""Changed replicas count as at most so many times as slow or as fast at once."""
WINDOWS_OF_CHANGE = 5.0
"""Windows of steps, of all replicas: the change is their median. One may be odd, and two overlap it."""
DEVIATION = math.sqrt(math.pi / 2)
"""A normal error's standard deviation over its mean."""
OUTLIER = 2.0
"""A sample whose error is more than this many usual errors counts less."""
LEAST_DEVIATION = 0.03
MIN_STEPS = 5
MIN_SAMPLES = 2.0
LEAST_TO_JUDGE = 0.5
"""Windows of steps before predictions are compared with measurements."""
MAX_RELATIVE_ERROR = 0.35
TRIAL_ERROR = 0.25
"""The assumed difference between steps of real requests and the steps that an idle replica tried."""
MIN_TRIALS = 3
"""Steps of different kinds, for three coefficients."""
TOKENS_APART = 8.0
"""The largest of them computes at least so many times as many tokens as the smallest, or β is noise."""
MOST_TRIAL_DOUBT = 0.5
"""A plan with tried steps alone accepts a standard error of the planned step up to this part."""


@dataclass(frozen=True)
class LatencyModel:
    """The fit so far: the normal equations, and the error of their predictions."""

    gram: Matrix = NOTHING
    moment: Row = (0.0, 0.0, 0.0)
    num_samples: float = 0.0
    """Windows of steps that it learned from. An overlapping one counts by its new part."""
    relative_error: float | None = None
    """Mean relative error of the predictions made before each sample was learned."""
    coefficients: Row = field(default=(0.0, 0.0, 0.0))
    distrusted_at: float = -math.inf
    """The number of samples when it was last distrusted."""
    num_tried: float = 0.0
    """How many of its samples are no requests' steps: a replica tried them before its first request."""
    changes: tuple[tuple[float, float], ...] | None = None
    """While it is distrusted: ratios of measured to predicted step times, each with its part of a window."""
    tried: Row | None = field(default=None, compare=False)
    """The coefficients of the tried steps, until enough real ones are known."""
    slowed_by: float = field(default=1.0, compare=False)
    """Meanwhile every step counts as so many times as slow as the tried ones say."""

    @classmethod
    def restore(
        cls,
        gram: Matrix,
        moment: Row,
        num_samples: float,
        relative_error: float | None,
        num_tried: float = 0.0,
    ) -> "LatencyModel":
        """Return the model with these equations; its coefficients follow from them."""
        coefficients = find_coefficients(gram, moment)
        return cls(gram, moment, num_samples, relative_error, coefficients, num_tried=num_tried)

    @classmethod
    def begin(cls, trials: Sequence[TrialStep]) -> "LatencyModel":
        """Return the model of replicas that have served no request, from steps that they tried.

        It has the fewest samples that a plan accepts, or none without trials of three kinds and sizes.
        """
        found = [trial for trial in trials if 0 < trial.seconds < math.inf]
        if len({(trial.tokens, trial.context_tokens) for trial in found}) < MIN_TRIALS:
            return cls()
        tokens = [trial.tokens for trial in found]
        if max(tokens) < TOKENS_APART * min(tokens):
            return cls()
        known = NormalEquations()
        for trial in found:
            x = find_row(trial.tokens, trial.context_tokens, trial.seconds)
            known = known.add(x, MIN_SAMPLES / len(found))
        model = cls.restore(known.gram, known.moment, MIN_SAMPLES, TRIAL_ERROR, MIN_SAMPLES)
        return replace(model, tried=model.coefficients)

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
        """Whether a plan may use the fit."""
        return (
            self.num_samples >= MIN_SAMPLES
            and self.relative_error is not None
            and self.relative_error <= MAX_RELATIVE_ERROR
            and sum(self.coefficients) > 0
        )

    @property
    def is_proven(self) -> bool:
        """Whether the fit rests on steps of real requests, and not only on tried ones."""
        return self.is_fitted and not self.is_untaught

    @property
    def is_untaught(self) -> bool:
        """Whether hardly any steps of real requests are known."""
        return self.num_samples - self.num_tried < MIN_SAMPLES

    @property
    def is_only_tried(self) -> bool:
        """Whether the model has tried steps, and hardly any others."""
        return self.num_tried > 0 and self.is_untaught

    def describe_doubt(self) -> str | None:
        """Say why a plan may not use the fit; None if it may."""
        if self.is_fitted:
            return None
        error = self.relative_error
        if self.num_samples < MIN_SAMPLES or error is None:
            known = f"{self.num_samples:.1f} of {MIN_SAMPLES:g} windows of steps"
            return f"the latency model is not fitted yet ({known})"
        found, most = math.ceil(100 * error), round(100 * MAX_RELATIVE_ERROR)
        return f"the latency model does not fit: it is {found} % off, and a plan accepts {most} %"

    def slow(self, part: float) -> "LatencyModel":
        """Return a model whose steps take longer by this part."""
        alpha, beta, gamma = ((1 + part) * value for value in self.coefficients)
        return replace(self, coefficients=(alpha, beta, gamma))

    def distrust(self) -> "LatencyModel":
        """Return the same model with so little weight that a few samples of another kind replace it."""
        if self.num_samples - self.distrusted_at < LEAST_BETWEEN_DOUBTS:
            # Several changes in turn would lose knowledge that no load between them restores.
            return replace(self, changes=(), tried=None)
        gram = tuple(tuple(KEPT_IN_DOUBT * value for value in row) for row in self.gram)
        moment = tuple(KEPT_IN_DOUBT * value for value in self.moment)
        return replace(  # the tried steps are of other replicas
            self,
            gram=gram,  # type: ignore[arg-type]
            moment=moment,  # type: ignore[arg-type]
            distrusted_at=self.num_samples,
            changes=(),
            tried=None,
        )

    def predict(self, tokens: float, context_tokens: float) -> float:
        """Return the seconds of a step with these computed tokens and this context."""
        return self.alpha + self.beta * tokens + self.gamma * context_tokens

    def standard_error(self, tokens: float, context_tokens: float) -> float:
        """Return the relative error of a step's predicted time that comes from too few such steps.

        √(σ²·xᵀ(G + ridge)⁻¹x), the standard error of a regression, with x and σ relative to the step's time.
        """
        seconds = self.predict(tokens, context_tokens)
        if seconds <= 0 or self.relative_error is None:
            return math.inf
        x = find_row(tokens, context_tokens, seconds)
        spread = NormalEquations(self.gram, self.moment).find_spread(x)
        return DEVIATION * self.relative_error * math.sqrt(max(spread, 0.0))

    def learn(
        self, moments: StepMoments, *, weight: float = 1.0, forgetting: float | None = None
    ) -> "LatencyModel":
        """Return the model after one more sample; samples of few steps are left out.

        `weight` is the new part of the sample, because windows overlap. `forgetting` is the part of the
        knowledge in its direction that it replaces, by default `weight` times FORGETTING.
        """
        if moments.num_steps < MIN_STEPS or moments.seconds <= 0:
            return self
        if self.changes is not None:
            return self._note_change(self.changes, moments, weight)
        error = abs(self.predict(moments.tokens, moments.context_tokens) - moments.seconds) / moments.seconds
        known = self.relative_error
        if self.num_samples < LEAST_TO_JUDGE:
            known = None
        elif known is None:
            known = error
        else:
            known += 0.15 * weight * (min(error, 2.0) - known)
        return self._absorb(moments, known, weight, weight * FORGETTING if forgetting is None else forgetting)

    def _note_change(
        self, changes: tuple[tuple[float, float], ...], moments: StepMoments, weight: float
    ) -> "LatencyModel":
        """Return the model after one more look at changed replicas: after enough looks it has their speed."""
        known = self.predict(moments.tokens, moments.context_tokens)
        ratio = moments.seconds / known if known > 0 else 1.0
        changes = (*changes, (min(max(ratio, 1 / LARGEST_CHANGE), LARGEST_CHANGE), weight))
        if sum(part for _, part in changes) < WINDOWS_OF_CHANGE:
            return replace(self, changes=changes)
        return self._scale(_find_median(changes))

    def _scale(self, ratio: float) -> "LatencyModel":
        """Return a model of replicas whose every step takes `ratio` times as long.

        Samples weigh by 1/seconds², so the rest of faster steps would outweigh slower ones.
        """
        gram = tuple(tuple(value / ratio**2 for value in row) for row in self.gram)
        moment = tuple(value / ratio for value in self.moment)
        coefficients = tuple(value * ratio for value in self.coefficients)
        return replace(self, gram=gram, moment=moment, coefficients=coefficients, changes=None)  # type: ignore[arg-type]

    def _trust(self, moments: StepMoments) -> float:
        """Return the weight of a sample: less if it is far off, as while a replica warms up.

        These are Huber's weights. If such samples go on, the usual error grows, and they count.
        """
        if not self.is_fitted or self.relative_error is None:
            return 1.0
        error = abs(self.predict(moments.tokens, moments.context_tokens) - moments.seconds) / moments.seconds
        usual = max(DEVIATION * self.relative_error, LEAST_DEVIATION)
        return min(1.0, OUTLIER * usual / max(error, 1e-9))

    def _absorb(
        self, moments: StepMoments, error: float | None, weight: float, forgetting: float
    ) -> "LatencyModel":
        x = find_row(moments.tokens, moments.context_tokens, moments.seconds)
        slowed = self._slow_tried_steps(moments)
        before = slowed or self
        if slowed:
            # Samples weigh by 1/seconds². Tried steps three times as fast as real ones kept the fit beyond
            # MAX_RELATIVE_ERROR for ten windows: see test_latency_model.py.
            forgetting = 1.0
        weight *= self._trust(moments)
        gram, moment = NormalEquations(before.gram, before.moment).forget(x, forgetting).add(x, weight)
        coefficients = find_coefficients(gram, moment)
        learned = replace(
            before,
            gram=gram,
            moment=moment,
            num_samples=self.num_samples + weight,
            relative_error=error,
            coefficients=coefficients,
        )
        return learned if learned.is_untaught else replace(learned, tried=None)

    def _slow_tried_steps(self, moments: StepMoments) -> "LatencyModel | None":
        """Return a model whose every step is as slow as the fastest of the first real windows.

        One window may be odd. The steps do not count as faster than the tried ones: a few windows say nothing
        about larger steps, and too few replicas harm. None unless this window is the first, or faster than
        those before.
        """
        is_first = self.num_samples == self.num_tried
        if self.tried is None:
            return self if is_first else None
        alpha, beta, gamma = self.tried
        known = alpha + beta * moments.tokens + gamma * moments.context_tokens
        ratio = min(max(moments.seconds / known, 1.0), LARGEST_CHANGE) if known > 0 else 1.0
        if is_first or ratio < self.slowed_by * (1 - TRIAL_ERROR):
            return replace(self._scale(ratio / self.slowed_by), slowed_by=ratio)
        return None


def _find_median(weighted: Sequence[tuple[float, float]]) -> float:
    """Return the weighted median."""
    half, seen = sum(weight for _, weight in weighted) / 2, 0.0
    for value, weight in sorted(weighted):
        seen += weight
        if seen >= half:
            return value
    return 1.0
