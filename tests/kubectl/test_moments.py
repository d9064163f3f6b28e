"""Times and durations as people read them."""

import pytest

from millrace_kubectl.wording import describe_length, describe_seconds


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
