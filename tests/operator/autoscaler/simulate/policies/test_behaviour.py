"""How far an HPA follows a wanted count: sequences worked out by hand from autoscaling/v2's rules."""

import pytest

from millrace_operator.autoscaler.simulate.policies.hpa import Behaviour, Bounds, Rules


def play(rules: Rules, wanted: list[int], current: int = 10) -> list[int]:
    """Return the counts, looked at every 15 s."""
    behaviour, counts = Behaviour(Bounds(1, 100), rules), []
    for tick, count in enumerate(wanted, 1):
        current = behaviour.follow(current, count, 15.0 * tick)
        counts.append(current)
    return counts


@pytest.mark.parametrize(
    ("rules", "wanted", "counts"),
    [
        (Rules(), [50] * 3, [20, 40, 50]),
        (Rules(), [5] * 22, [10] * 20 + [5] * 2),  # what it found counts as wanted for 300 s
        (Rules(up_period=60.0), [50] * 6, [20, 20, 20, 20, 40, 40]),
        (Rules(up_window=30.0), [50, 12, 50, 50, 50], [10, 10, 12, 24, 48]),
        (Rules(down_window=30.0), [5, 5, 5, 5], [10, 10, 5, 5]),
        (Rules(down_window=0.0, down_pods=1, down_period=60.0), [1] * 6, [9, 9, 9, 9, 8, 8]),
        (Rules(down_window=0.0), [1, 200], [1, 5]),
    ],
)
def test_windows_and_speeds(rules: Rules, wanted: list[int], counts: list[int]) -> None:
    assert play(rules, wanted) == counts
