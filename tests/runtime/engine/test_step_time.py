import itertools
import random
import statistics
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_runtime.engine.step_time import StepTime, StepWork, count_pairs

COUNTS = st.integers(0, 5000)
WORKS = st.builds(StepWork, COUNTS, COUNTS, COUNTS, COUNTS)
SECONDS = st.floats(1e-5, 100)


def true_seconds(work: StepWork) -> float:
    """A small model on two cores."""
    return sum(a * b for a, b in zip(work.features, (4e-4, 8e-8, 0.02, 3e-4, 2e-7), strict=True))


def list_decodes(num: int) -> Iterator[StepWork]:
    rng = random.Random(1)
    for _ in range(num):
        num_rows = rng.randint(1, 8)
        yield StepWork(num_rows, num_rows * rng.randint(100, 4000))


def list_mixed(num: int) -> Iterator[StepWork]:
    rng = random.Random(2)
    for work in list_decodes(num):
        size, before = rng.randint(16, 300), rng.randint(0, 6000)
        yield StepWork(work.num_decoded, work.num_decode_reads, size, count_pairs(size, before))


def learn(works: Iterator[StepWork], seed: int = 3, noise: float = 0.05) -> StepTime:
    rng, model = random.Random(seed), StepTime()
    for work in works:
        model.observe(work, true_seconds(work) * rng.uniform(1 - noise, 1 + noise))
    return model


def assert_knows(model: StepTime, works: Iterator[StepWork], error: float) -> None:
    for work in works:
        assert model.predict(work) == pytest.approx(true_seconds(work), rel=error)


def test_pairs_are_those_of_attention() -> None:
    pairs = [(token, seen) for token in range(5, 9) for seen in range(token + 1)]
    assert count_pairs(4, 5) == len(pairs)
    work = StepWork()
    work.add_chunk(4, 9)
    assert work == StepWork(0, 0, 4, len(pairs))


def test_it_learns_the_time_of_decodes_and_chunks() -> None:
    model = learn(itertools.chain(list_mixed(300), list_decodes(20)))
    assert_knows(model, list_mixed(50), 0.1)
    assert_knows(model, list_decodes(50), 0.1)
    assert model.spread < 0.1


def test_times_that_vary_are_predicted_at_their_mean() -> None:
    """The least of them are a third of the largest."""
    model = learn(list_mixed(400), noise=0.5)
    ratios = [model.predict(work) / true_seconds(work) for work in list_mixed(100)]
    assert statistics.fmean(ratios) == pytest.approx(1.0, abs=0.1)


def test_an_hour_of_decodes_leaves_what_it_knows_of_chunks() -> None:
    model = learn(itertools.chain(list_mixed(200), [StepWork(4, 4000)] * 50_000))
    assert_knows(model, iter([StepWork(4, 4000, size, count_pairs(size, 1000)) for size in (32, 256)]), 0.15)


@pytest.mark.parametrize("at", [0, 150, 199])
def test_a_compilation_of_seconds_changes_little(at: int) -> None:
    model = learn(list_mixed(at))
    model.observe(StepWork(8, 8000, 64, count_pairs(64, 500)), 7.0)
    for work in list_mixed(200 - at):
        model.observe(work, true_seconds(work))
    assert_knows(model, list_mixed(20), 0.15)


@pytest.mark.parametrize("factor", [0.1, 0.5, 3.0])
def test_it_follows_a_machine_that_becomes_faster_or_slower(factor: float) -> None:
    model = learn(list_mixed(200))
    for work in list_mixed(250):
        model.observe(work, true_seconds(work) * factor)
    works = list(list_mixed(20))
    assert [model.predict(work) for work in works] == pytest.approx(
        [true_seconds(work) * factor for work in works], rel=0.1
    )


def test_a_chunk_is_the_largest_that_takes_the_seconds() -> None:
    model, decodes = learn(list_mixed(300), noise=0.0), StepWork(8, 8000)
    for seconds, before in itertools.product((0.01, 0.05, 0.2), (0, 1000, 7000)):
        size = model.fit_chunk(seconds, before)
        for more, is_within in ((0, True), (1, False)):
            work = StepWork(8, 8000, size + more, count_pairs(size + more, before))
            assert (model.predict(work) - model.predict(decodes) <= seconds) is is_within


def test_a_chunk_grows_step_by_step_where_none_was_tried() -> None:
    model = StepTime()
    assert model.fit_chunk(1.0, 0) == 0
    model.observe(StepWork(1, 10, 16, count_pairs(16, 0)), 0.02)
    assert model.fit_chunk(1e9, 0) == 32


@given(st.lists(st.tuples(WORKS, SECONDS), max_size=60), WORKS, SECONDS)
def test_whatever_it_sees_more_work_never_takes_less_time(
    seen: list[tuple[StepWork, float]], work: StepWork, seconds: float
) -> None:
    model = StepTime()
    for observed, took in seen:
        model.observe(observed, took)
    assert min(model._fit.coefficients) >= 0
    assert 0 <= model.predict(work) < float("inf")
    assert model.fit_chunk(seconds, 100) <= model.fit_chunk(2 * seconds, 100)
    assert model.fit_chunk(seconds, 200) <= model.fit_chunk(seconds, 100)
