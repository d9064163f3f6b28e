"""How long to wait before the next try. Pure: the random number is given."""

MAX_TRIES = 6
"""In a row without progress."""
_FIRST_SECONDS = 0.5
_LONGEST_SECONDS = 30.0
_LONGEST_ASKED_SECONDS = 3600.0
"""What a limit per hour asks for. A pod that ended instead would ask again within minutes."""


def plan_wait(num_failures: int, retry_after_seconds: float | None, draw: float) -> float | None:
    """Return seconds to wait after so many failures in a row (1 or more). `draw` is in [0, 1).

    None where the server asks for more than anybody waits.

    Doubles each time and is spread over its upper half, so that many pods don't come back at once. Never
    earlier than the server asks.
    """
    longest = min(_LONGEST_SECONDS, _FIRST_SECONDS * float(1 << (num_failures - 1)))
    wait = longest * (1 + draw) / 2
    if retry_after_seconds is None:
        return wait
    return None if retry_after_seconds > _LONGEST_ASKED_SECONDS else retry_after_seconds + wait
