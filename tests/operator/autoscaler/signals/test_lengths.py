"""The lengths of answers, as far as a histogram has them."""

import math
from statistics import NormalDist

import pytest

from millrace_operator.autoscaler.decide.memory import Memory
from millrace_operator.autoscaler.decide.memory_update import remember
from millrace_operator.autoscaler.decide.policy import Policy
from millrace_operator.autoscaler.signals.lengths import (
    ANSWERS_AVERAGED,
    LEAST_ANSWERS,
    AnswerLengths,
    read_lengths,
)
from millrace_operator.autoscaler.signals.observation import Fleet, Signals
from millrace_runtime.contract import ANSWER_BUCKETS

SHARES = (0.5, 0.8, 0.9, 0.95, 0.99)


def measure(median: float, spread: float, cap: float = math.inf) -> AnswerLengths:
    """Lognormal lengths that a cap ends."""
    normal = NormalDist(math.log(median), spread)
    shares = (1.0 if bound >= cap else normal.cdf(math.log(bound)) for bound in ANSWER_BUCKETS)
    return AnswerLengths(tuple(shares), 1000.0)


def find_true(median: float, spread: float, share: float) -> float:
    return median * math.exp(spread * NormalDist().inv_cdf(share))


@pytest.mark.parametrize("median", [60, 100, 147, 211, 389, 640, 1020, 1300])
@pytest.mark.parametrize(("spread", "error"), [(0.86, 0.03), (0.5, 0.06), (0.1, 0.3)])
def test_long_answers_are_read_nearly_as_long_as_they_are(median: float, spread: float, error: float) -> None:
    lengths = measure(median, spread)
    for share in (0.9, 0.95):
        assert lengths.quantile(share) == pytest.approx(find_true(median, spread, share), rel=error)


@pytest.mark.parametrize("cap", [100.0, 256.0, 300.0, 512.0, 1000.0, 2000.0])
@pytest.mark.parametrize("part", [0.5, 0.8, 1.2])
def test_a_cap_that_is_a_bound_is_not_exceeded_and_nearly_reached(cap: float, part: float) -> None:
    lengths = measure(part * cap, 0.86, cap)
    assert 0.91 * cap <= lengths.quantile(0.95) <= lengths.quantile(0.999) <= lengths.quantile(1.0) == cap


@pytest.mark.parametrize("length", [1, 3, 90, 180, 200, 350, 1000, 70_000])
def test_equal_answers_are_read_within_their_bucket(length: int) -> None:
    lengths = AnswerLengths(tuple(float(bound >= length) for bound in ANSWER_BUCKETS), 1000.0)
    upper = min(bound for bound in ANSWER_BUCKETS if bound >= length)
    lower = max((bound for bound in ANSWER_BUCKETS if bound < upper), default=upper)
    read = [lengths.quantile(share) for share in (0.0, *SHARES, 1.0)]
    assert read == sorted(read)
    assert lower <= read[1] <= read[-1] == upper


def test_a_larger_part_of_the_answers_is_longer() -> None:
    lengths = measure(147, 0.86)
    read = [lengths.quantile(percent / 1000) for percent in range(1001)]
    assert read == sorted(read)
    assert read[0] == 1.0


def count(lengths: AnswerLengths) -> dict[float, float]:
    pairs = zip(ANSWER_BUCKETS, lengths.shares, strict=True)
    return {bound: share * lengths.answers for bound, share in pairs} | {math.inf: lengths.answers}


def test_counts_by_bucket_become_parts() -> None:
    lengths = measure(147, 0.86)
    read = read_lengths(count(lengths))
    assert read is not None
    assert (read.shares, read.answers) == (pytest.approx(lengths.shares), 1000.0)


def test_a_window_of_many_answers_counts_for_no_more_than_is_remembered() -> None:
    """Otherwise the next leader could not read the prior."""
    read = read_lengths(
        {bound: 2 * count for bound, count in count(measure(147, 0.86)).items()} | {math.inf: 1e6}
    )
    assert read is not None
    assert read.answers == ANSWERS_AVERAGED


def test_without_answers_or_with_other_bounds_nothing_is_known() -> None:
    assert read_lengths({}) is None
    assert read_lengths(dict.fromkeys((*ANSWER_BUCKETS, math.inf), 0.0)) is None
    others = count(measure(147, 0.86))
    del others[256.0]
    assert read_lengths(others) is None


def test_buckets_that_prometheus_extrapolates_differently_never_fall() -> None:
    read = read_lengths(count(measure(147, 0.86)) | {200.0: 1001.0, 300.0: 10.0})
    assert read is not None
    assert list(read.shares) == sorted(read.shares)
    assert read.shares[-1] == 1.0


@pytest.mark.parametrize(("revision", "is_learned"), [("one", True), ("two", False)])
def test_while_two_revisions_serve_nothing_is_learned(revision: str, *, is_learned: bool) -> None:
    """One may count at more bounds than the other."""
    known, seen = measure(50, 0.5), measure(500, 0.5)
    fleet = Fleet({"a": "one", "b": revision}, frozenset({"a", "b"}))
    signals = Signals(fleet, arrivals_per_second=50.0, answer_lengths=seen)
    memory = remember(Memory(answer_lengths=known), signals, Policy(1, 4), 0.0)
    assert (memory.answer_lengths != known) == is_learned


@pytest.mark.parametrize(("before", "after"), [(400, 40), (40, 400)])
def test_answers_that_become_others_are_known_within_hundreds_of_them(before: float, after: float) -> None:
    """A client asks for a tenth as many tokens; an average over 2000 would hold the long ones for hours."""
    known, seen = measure(before, 0.5), measure(after, 0.5)
    fleet = Fleet({"a": "one"}, frozenset({"a"}))
    signals = Signals(fleet, arrivals_per_second=1.0, answer_lengths=seen, generation_tokens=seen.mean)
    memory = Memory(answer_lengths=known, generation_tokens=known.mean)
    for tick in range(300):
        memory = remember(memory, signals, Policy(1, 4), 2.0 * tick)
    assert memory.answer_lengths is not None
    assert memory.answer_lengths.quantile(0.95) == pytest.approx(seen.quantile(0.95), rel=0.05)


def test_the_mean_is_nearly_that_of_the_answers() -> None:
    lengths = measure(147, 0.86)
    assert lengths.mean == pytest.approx(147 * math.exp(0.86**2 / 2), rel=0.06)
    assert lengths.is_of(150.0)
    assert not lengths.is_of(90.0)
    assert not lengths.is_of(500.0)


def test_few_answers_are_not_enough_and_many_change_slowly() -> None:
    short, long = measure(50, 0.5), measure(500, 0.5)
    few = AnswerLengths(short.shares, 40.0)
    assert not few.is_known
    more = few.add(short, 60.0)
    assert (more.answers, more.is_known) == (LEAST_ANSWERS, True)
    many = AnswerLengths(short.shares, ANSWERS_AVERAGED)
    half = [(one + other) / 2 for one, other in zip(short.shares, long.shares, strict=True)]
    assert many.add(long, ANSWERS_AVERAGED).shares == pytest.approx(half)
    for _ in range(100):
        many = many.add(long, 100.0)
    assert many.answers == ANSWERS_AVERAGED
    assert many.quantile(0.95) == pytest.approx(long.quantile(0.95), rel=0.02)
    assert many.add(short, 0.0) == many
