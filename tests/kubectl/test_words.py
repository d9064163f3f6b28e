"""Figures as people write them."""

import pytest

from millrace_kubectl.wording import show_apart, show_latency


@pytest.mark.parametrize(
    ("seconds", "told"),
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
def test_a_latency_has_three_digits_and_no_exponent(seconds: float | None, told: str) -> None:
    assert show_latency(seconds) == told


@pytest.mark.parametrize(("seconds", "told"), [(0.9996, "999.6ms"), (1.0004, "1.0004s"), (1.2, "1.2s")])
def test_a_latency_beside_its_target_does_not_look_like_it(seconds: float, told: str) -> None:
    assert show_apart(seconds, 1.0) == told
