"""Times and durations as people read them at night. Pure."""

from datetime import UTC, datetime

EXACT_BELOW = 600.0
"""A length is told to the second below ten minutes: with a count beside it, it is reckoned with."""


def describe_moment(at: float, now: float) -> str:
    """Return a time of day in UTC, with its date unless that is today's: 03:00 UTC."""
    moment, today = (datetime.fromtimestamp(time, UTC) for time in (at, now))
    day = "" if moment.date() == today.date() else f"{moment:%Y-%m-%d} "
    return f"{day}{moment:%H:%M} UTC"


def describe_length(seconds: float) -> str:
    """Return how long something is that was recorded or set: 80s, 1m47s, 2m, 1h05m."""
    minutes, rest = divmod(int(seconds), 60)
    is_exact = seconds < EXACT_BELOW and rest and describe_seconds(seconds).endswith("m")
    return f"{minutes}m{rest:02d}s" if is_exact else describe_seconds(seconds)


def describe_seconds(seconds: float) -> str:
    """Return an age in its largest units: 80s, 6m, 1h05m, 2d3h. One below zero is 0s: clocks differ."""
    whole = max(0, int(seconds))
    if whole < 100:
        return f"{whole}s"
    minutes = whole // 60
    if minutes < 60:
        return f"{minutes}m"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h{minutes:02d}m" if minutes else f"{hours}h"
    days, hours = divmod(hours, 24)
    return f"{days}d{hours}h" if hours else f"{days}d"
