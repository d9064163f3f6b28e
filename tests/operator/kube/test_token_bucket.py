import pytest

from millrace_operator.kube.requests import TokenBucket


def test_a_burst_is_free_and_then_the_rate_holds() -> None:
    bucket = TokenBucket(rate=10, burst=3, now=0)
    assert [bucket.reserve(0) for _ in range(5)] == pytest.approx([0, 0, 0, 0.1, 0.2])


def test_tokens_come_back_but_never_more_than_the_burst() -> None:
    bucket = TokenBucket(rate=10, burst=2, now=0)
    bucket.reserve(0)
    assert [bucket.reserve(100) for _ in range(3)] == pytest.approx([0, 0, 0.1])


def test_a_clock_that_steps_back_gives_nothing_away() -> None:
    bucket = TokenBucket(rate=1, burst=1, now=10)
    bucket.reserve(10)
    assert bucket.reserve(5) == pytest.approx(1)


def test_a_rate_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="rate above 0"):
        TokenBucket(rate=0, burst=1, now=0)


def test_a_pause_holds_all_that_is_granted_later() -> None:
    bucket = TokenBucket(10.0, 5, 0.0)
    bucket.pause(30.0)
    bucket.pause(20.0)
    assert bucket.pause_left(25.0) == 5.0
    assert bucket.reserve(10.0) == 20.0
    assert bucket.reserve(29.0) == 1.0
    assert bucket.reserve(30.0) == 0.0
