"""Requests by the second, whatever the clock does."""

import pytest

from millrace_operator.gateways.loads import Arrivals


@pytest.mark.parametrize("begin", [97.0, 98.5, 100.0])
def test_requests_count_though_the_clock_was_set_back(begin: float) -> None:
    arrivals = Arrivals()
    arrivals.add("team/chat", 3.0, begin, 98.9)
    assert arrivals.rate("team/chat", 10.0, 98.9) == pytest.approx(0.3)
