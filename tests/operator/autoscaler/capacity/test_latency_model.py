import math
import random
from dataclasses import replace

import pytest

from millrace_operator.autoscaler.capacity.capacity import find_capacity
from millrace_operator.autoscaler.capacity.latency_model import LatencyModel
from millrace_operator.autoscaler.capacity.replica import Replica
from millrace_operator.autoscaler.signals.observation import StepMoments, TrialStep

ALPHA, BETA, GAMMA = 0.02, 0.002, 2e-6


def sample(rng: random.Random, *, noise: float = 0.0, num_steps: float = 50) -> StepMoments:
    batch = rng.uniform(1, 16)
    tokens, context = batch + rng.uniform(0, 20), batch * rng.uniform(50, 2000)
    seconds = (ALPHA + BETA * tokens + GAMMA * context) * (1 + rng.uniform(-noise, noise))
    return StepMoments("pod-0", seconds, batch, tokens, context, num_steps)


def fit(count: int, noise: float) -> LatencyModel:
    rng, model = random.Random(1), LatencyModel()
    for _ in range(count):
        model = model.learn(sample(rng, noise=noise))
    return model


def test_recovers_the_coefficients_of_noisy_samples() -> None:
    model = fit(200, noise=0.05)
    assert model.is_fitted
    assert model.alpha == pytest.approx(ALPHA, rel=0.15)
    assert model.beta == pytest.approx(BETA, rel=0.15)
    assert model.gamma == pytest.approx(GAMMA, rel=0.2)


def test_predicts_unseen_steps_within_a_few_percent() -> None:
    assert fit(200, noise=0.05).predict(30, 20_000) == pytest.approx(
        ALPHA + BETA * 30 + GAMMA * 20_000, rel=0.1
    )


def test_is_not_fitted_from_few_samples() -> None:
    assert not fit(1, noise=0.0).is_fitted
    model, moments = LatencyModel(), sample(random.Random(1))
    for _ in range(15):
        model = model.learn(moments, weight=0.1)
    assert not model.is_fitted
    assert model.describe_doubt() == "the latency model is not fitted yet (1.5 of 2 windows of steps)"


def test_knows_how_little_it_knows_of_steps_unlike_those_it_saw() -> None:
    """Idle steps hold no information about large batches; each sample of a large one lowers the error."""
    rng, model = random.Random(4), LatencyModel()
    for _ in range(50):
        model = model.learn(idle(rng))
    far = model.standard_error(16, 16_000)
    assert model.standard_error(1, 50) < 0.02
    assert far > 0.2
    errors = [far]
    for _ in range(20):
        model = model.learn(sample(rng, noise=0.03))
        errors.append(model.standard_error(16, 16_000))
    assert errors[-1] < 0.1 * far
    assert LatencyModel().standard_error(1, 1) == math.inf


@pytest.mark.parametrize("count", [0, 1, 200])
def test_a_model_is_whole_again_from_what_it_learned(count: int) -> None:
    model = fit(count, noise=0.05)
    assert LatencyModel.restore(model.gram, model.moment, model.num_samples, model.relative_error) == model


def test_a_model_that_is_distrusted_predicts_the_same_until_it_learns_other_steps() -> None:
    rng, model = random.Random(1), fit(200, noise=0.02).distrust()
    assert model.predict(8, 4000) == pytest.approx(ALPHA + BETA * 8 + GAMMA * 4000, rel=0.1)
    for _ in range(30):
        moments = sample(rng)
        model = model.learn(StepMoments("pod-0", 2 * moments.seconds, *list(vars(moments).values())[2:]))
    assert model.predict(8, 4000) == pytest.approx(2 * (ALPHA + BETA * 8 + GAMMA * 4000), rel=0.2)


@pytest.mark.parametrize("times", [0.4, 2.0, 3.0])
def test_other_replicas_are_known_after_a_few_windows_of_theirs(times: float) -> None:
    """Once the fit took 40 windows to come within 17 % of steps twice as slow: earlier ones weighed more."""
    rng, model = random.Random(1), fit(200, noise=0.02)
    for _ in range(2):  # a rollout, and another one before the first has taught anything
        model = model.distrust()
    for _ in range(6):
        moments = sample(rng, noise=0.02)
        model = model.learn(StepMoments("pod-0", times * moments.seconds, *list(vars(moments).values())[2:]))
    assert model.is_fitted
    assert model.predict(8, 4000) == pytest.approx(times * (ALPHA + BETA * 8 + GAMMA * 4000), rel=0.1)


@pytest.mark.parametrize("odd", [0.1, 3.0, 10.0])
@pytest.mark.parametrize("first", [True, False])
def test_one_odd_window_after_a_rollout_changes_little(odd: float, *, first: bool) -> None:
    """Such as a stall of a second among few steps. Windows of twenty seconds overlap, as they are read."""
    rng, model = random.Random(1), fit(200, noise=0.02).distrust()
    for tick in range(60):
        moments = sample(rng, noise=0.02)
        is_odd = tick < 10 if first else 15 <= tick < 25
        seconds = moments.seconds * (odd if is_odd else 1.0)
        weight = 0.1 if tick else 1.0
        model = model.learn(StepMoments("pod-0", seconds, *list(vars(moments).values())[2:]), weight=weight)
    assert model.predict(8, 4000) == pytest.approx(ALPHA + BETA * 8 + GAMMA * 4000, rel=0.25)


def test_a_second_rollout_soon_after_the_first_is_followed_too() -> None:
    """A bad revision, and the way back."""
    rng, model = random.Random(1), fit(200, noise=0.02)
    for times in (3.0, 1.0):
        model = model.distrust()
        for _ in range(10):
            moments = sample(rng, noise=0.02)
            slow = StepMoments("pod-0", times * moments.seconds, *list(vars(moments).values())[2:])
            model = model.learn(slow)
        true = times * (ALPHA + BETA * 8 + GAMMA * 4000)
        assert model.predict(8, 4000) == pytest.approx(true, rel=0.1)


def test_says_so_when_steps_follow_no_line() -> None:
    rng, model = random.Random(1), LatencyModel()
    for _ in range(100):
        seconds = rng.choice([0.001, 1.0])
        model = model.learn(StepMoments("pod-0", seconds, 4, 4, 100, 50))
    assert not model.is_fitted
    assert model.relative_error is not None
    assert model.relative_error > 0.35


def test_samples_of_few_steps_teach_nothing() -> None:
    assert LatencyModel().learn(sample(random.Random(1), num_steps=2)) == LatencyModel()


def test_coefficients_never_fall_under_zero() -> None:
    model = LatencyModel()
    for batch in range(1, 17):  # larger batches faster: nonsense that must not extrapolate below zero
        model = model.learn(StepMoments("pod-0", 0.1 - 0.005 * batch, batch, batch, 100.0 * batch, 50))
    assert min(model.coefficients) >= 0


def test_follows_a_change_of_hardware() -> None:
    rng, model = random.Random(1), fit(200, noise=0.02)
    for _ in range(400):
        moments = sample(rng)
        model = model.learn(StepMoments("pod-0", 2 * moments.seconds, *list(vars(moments).values())[2:]))
    assert model.predict(8, 4000) == pytest.approx(2 * (ALPHA + BETA * 8 + GAMMA * 4000), rel=0.1)


def idle(rng: random.Random) -> StepMoments:
    """A step of one short sequence, whose time is nearly all the empty step's."""
    tokens, context = rng.uniform(1, 1.1), rng.uniform(40, 60)
    seconds = (ALPHA + BETA * tokens + GAMMA * context) * (1 + rng.uniform(-0.03, 0.03))
    return StepMoments("pod-0", seconds, 1, tokens, context, 50)


@pytest.mark.parametrize("num_samples", [800, 20_000])
def test_a_night_of_idle_steps_forgets_nothing_of_busy_ones(num_samples: int) -> None:
    rng, model = random.Random(4), fit(200, noise=0.03)
    busy = find_capacity(Replica(model, 40, 40, 60, 16), (), 1).rate
    for _ in range(num_samples):
        model = model.learn(idle(rng))
    assert model.predict(16, 16_000) == pytest.approx(ALPHA + BETA * 16 + GAMMA * 16_000, rel=0.1)
    assert find_capacity(Replica(model, 40, 40, 60, 16), (), 1).rate == pytest.approx(busy, rel=0.1)


def test_a_window_that_is_seen_ten_times_teaches_what_it_teaches_once() -> None:
    rng, often, once = random.Random(2), LatencyModel(), LatencyModel()
    for _ in range(60):
        moments = sample(rng, noise=0.05)
        once = once.learn(moments)
        for _ in range(10):
            often = often.learn(moments, weight=0.1)
    assert often.coefficients == pytest.approx(once.coefficients, rel=0.02)
    assert sum(often.gram[i][i] for i in range(3)) == pytest.approx(
        sum(once.gram[i][i] for i in range(3)), rel=0.05
    )


def test_a_hundred_pods_remember_as_long_as_one() -> None:
    """Information grows with the pods, and is forgotten by the time that passes."""
    rng, model = random.Random(2), LatencyModel()
    for _ in range(300):
        for _ in range(100):
            model = model.learn(sample(rng, noise=0.05), forgetting=0.01 / 100)
    one = fit(300, noise=0.05)
    assert model.gram[0][0] == pytest.approx(100 * one.gram[0][0], rel=0.2)


def test_long_contexts_do_not_hide_the_empty_step() -> None:
    """Regressors of very different sizes: tens of sequences with thousands of tokens each."""
    rng, model = random.Random(6), LatencyModel()
    for _ in range(200):
        batch = rng.uniform(5, 60)
        tokens, context = batch + rng.uniform(0, 400), batch * rng.uniform(4000, 5000)
        seconds = (0.026 + 3.5e-5 * tokens + 3e-8 * context) * (1 + rng.uniform(-0.02, 0.02))
        model = model.learn(StepMoments("pod-0", seconds, batch, tokens, context, 50))
    assert model.alpha == pytest.approx(0.026, rel=0.05)
    assert model.gamma == pytest.approx(3e-8, rel=0.1)


def test_changes_in_turn_without_load_lose_nothing() -> None:
    rng, model = random.Random(4), fit(200, noise=0.03)
    for _ in range(4):
        model = model.distrust()
        for _ in range(30):
            model = model.learn(idle(rng))
    assert model.predict(16, 16_000) == pytest.approx(ALPHA + BETA * 16 + GAMMA * 16_000, rel=0.15)


def try_out(tokens: float, context: float) -> TrialStep:
    return TrialStep(ALPHA + BETA * tokens + GAMMA * context, tokens, context)


TRIALS = (try_out(1, 8), try_out(1024, 1024), try_out(16, 16_800))


def test_steps_that_were_tried_can_be_planned_with_and_are_doubted() -> None:
    model = LatencyModel.begin(TRIALS)
    assert model.is_fitted
    assert model.predict(8, 4_000) == pytest.approx(ALPHA + BETA * 8 + GAMMA * 4_000, rel=0.02)
    assert model.predict(64, 32_000) == pytest.approx(ALPHA + BETA * 64 + GAMMA * 32_000, rel=0.1)
    assert model.standard_error(64, 64_000) > 0.1


@pytest.mark.parametrize(
    "trials",
    [
        (),
        TRIALS[:2],
        TRIALS[:2] * 3,
        (try_out(1, 7), try_out(1, 1), try_out(1, 269)),
        (*TRIALS[:2], TrialStep(0.0, 16, 16_800)),
        (*TRIALS[:2], TrialStep(-1.0, 16, 16_800)),
        (*TRIALS[:2], TrialStep(math.inf, 16, 16_800)),
    ],
)
def test_trials_of_too_few_kinds_are_no_model(trials: tuple[TrialStep, ...]) -> None:
    assert LatencyModel.begin(trials) == LatencyModel()


@pytest.mark.parametrize("factor", [0.5, 1.3, 3.0])
def test_real_steps_soon_outweigh_those_that_were_tried(factor: float) -> None:
    rng, model = random.Random(3), LatencyModel.begin(TRIALS)
    for _ in range(40):
        real = sample(rng, noise=0.05)
        model = model.learn(replace(real, seconds=factor * real.seconds))
    assert model.is_fitted
    assert model.predict(16, 16_000) == pytest.approx(factor * (ALPHA + BETA * 16 + GAMMA * 16_000), rel=0.1)


@pytest.mark.parametrize("factor", [2.0, 3.0, 6.0])
def test_one_odd_window_at_first_makes_no_step_slow_for_good(factor: float) -> None:
    """As where the first request compiles something, or a neighbour was busy."""
    rng, model = random.Random(3), LatencyModel.begin(TRIALS)
    for tick in range(40):
        real, weight = idle(rng), 0.1 if tick else 1.0
        seconds = real.seconds * (1.0 if tick else factor)
        model = model.learn(replace(real, seconds=seconds), weight=weight, forgetting=0.01 * weight)
    assert model.predict(16, 16_000) == pytest.approx(ALPHA + BETA * 16 + GAMMA * 16_000, rel=0.2)


@pytest.mark.parametrize("factor", [0.6, 3.0, 6.0])
def test_the_first_real_steps_say_how_slow_those_that_were_tried_are(factor: float) -> None:
    """A replica tried its steps in a quiet moment of a busy node. Windows overlap, as they are read."""
    rng, model = random.Random(3), LatencyModel.begin(TRIALS)
    for tick in range(50):
        real = idle(rng)
        weight = 0.1 if tick else 1.0
        model = model.learn(
            replace(real, seconds=factor * real.seconds), weight=weight, forgetting=0.01 * weight
        )
        assert model.is_fitted
    assert model.predict(1, 50) == pytest.approx(factor * (ALPHA + BETA + GAMMA * 50), rel=0.1)
    assert model.relative_error is not None
    assert model.relative_error < 0.25
    slope = model.predict(64, 64) - model.predict(1, 64)
    # A node that is slower is so for every step. Whether it is faster for larger ones, idle steps don't tell.
    assert slope == pytest.approx(max(factor, 1.0) * 63 * BETA, rel=0.3)
