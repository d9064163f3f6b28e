"""Durations as the resource writes them: `90s`, `1h30m`, `1.5s`."""

import re

DURATION_PATTERN = r"^([0-9]{1,9}([.][0-9]{1,9})?(h|m|s|ms))+$"
_PART = re.compile(r"([0-9]{1,9}(?:[.][0-9]{1,9})?)(ms|h|m|s)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def parse_duration(text: str) -> float:
    """Return the seconds of a duration. Raises ValueError that says what to write instead."""
    if not re.match(DURATION_PATTERN, text):
        raise ValueError(f"{text!r} is no duration; write for example 500ms, 2s, 10m or 1h30m")
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
