"""The description of the replayed requests."""

import pytest

from millrace_kubectl.simulation.traffic import Traffic
from millrace_operator.autoscaler.simulate.load import Request


def make_traffic(times: list[float], seconds: float) -> Traffic:
    return Traffic([Request(at, 100, 50) for at in times], seconds)


@pytest.mark.parametrize(
    ("times", "seconds", "says"),
    [
        (
            [
                *(60 * number / 208 for number in range(208)),
                *(60 + 47 * number / 191 for number in range(191)),
            ],
            107.0,
            "399 requests in 1m47s: 3.73 a second, 3.93 in",
        ),
        ([float(number) for number in range(30)], 30.0, "30 requests in 30s: 1 a second, 1 in"),
        (
            [0.0, *(number + 0.5 for number in range(30, 90)), 180.0],
            181.0,
            "62 requests in 3m01s: 0.343 a second, 1 in",
        ),
        ([5.0] * 60 + [65.0] * 60, 120.0, "120 requests in 2m: 1 a second, 1 in"),
    ],
    ids=["partial", "shorter", "between", "apart"],
)
def test_the_busiest_minute_is_wherever_it_begins_and_no_part_of_one(
    times: list[float], seconds: float, says: str
) -> None:
    """It is never less busy than the whole."""
    assert make_traffic(times, seconds).describe().startswith(f"{says} the busiest minute")
