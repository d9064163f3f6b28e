"""Figures, times and durations as people read them."""

import pytest

from millrace_kubectl.wording import describe_length, describe_seconds, show_apart, show_latency


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "?"),
        (0.0004, "0.4ms"),
        (0.05, "50ms"),
        (0.9994, "999ms"),
        (0.9996, "1s"),
        (3.4, "3.4s"),
        (999.7, "1000s"),
        (1234.0, "1234s"),
    ],
)
def test_a_latency_has_three_digits_and_no_exponent(seconds: float | None, text: str) -> None:
    assert show_latency(seconds) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.9996, "999.6ms"), (1.0004, "1.0004s"), (1.2, "1.2s")])
def test_a_latency_beside_its_target_does_not_look_like_it(seconds: float, text: str) -> None:
    assert show_apart(seconds, 1.0) == text


@pytest.mark.parametrize(
    ("seconds", "length", "age"),
    [
        (-1.0, "0s", "0s"),
        (5.0, "5s", "5s"),
        (99.9, "99s", "99s"),
        (107.0, "1m47s", "1m"),
        (120.0, "2m", "2m"),
        (361.4, "6m01s", "6m"),
        (599.0, "9m59s", "9m"),
        (600.0, "10m", "10m"),
        (659.0, "10m", "10m"),
        (3900.0, "1h05m", "1h05m"),
        (183600.0, "2d3h", "2d3h"),
    ],
)
def test_a_length_has_its_seconds_below_ten_minutes_and_an_age_has_not(
    seconds: float, length: str, age: str
) -> None:
    assert (describe_length(seconds), describe_seconds(seconds)) == (length, age)
