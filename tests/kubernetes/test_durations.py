import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_kubernetes.durations import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("2s", 2),
        ("1.5s", 1.5),
        ("10m", 600),
        ("1h30m", 5400),
        ("1m0s", 60),
        ("1m5ms", 60.005),
    ],
)
def test_durations_as_people_write_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "-1s", "1d", "s", "1 s", "1.s", "1s ", "1sm"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write for example 500ms"):
        parse_duration(text)


@given(st.integers(0, 99), st.integers(0, 59), st.integers(0, 59))
def test_parts_add_up(hours: int, minutes: int, seconds: int) -> None:
    assert parse_duration(f"{hours}h{minutes}m{seconds}s") == hours * 3600 + minutes * 60 + seconds
