"""The annotation that pins a service's count for a time: the plugin writes it, the operator obeys it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from millrace_operator.api.conditions import render_time

ANNOTATION = "millrace.dev/pin"
FORM = "COUNT until YYYY-MM-DDTHH:MM:SSZ"
YEARS = range(1900, 9000)
"""Times near the ends of the calendar can't be written in another zone."""
_FORM = re.compile(r"([0-9]{1,4}) until (\S{1,40})")


class PinError(ValueError):
    """An annotation that is no pin; the text says what one looks like."""


@dataclass(frozen=True)
class Pin:
    """A count that a person has set, and until when."""

    replicas: int
    until: float
    """In seconds since 1970."""

    def __str__(self) -> str:
        return f"{self.replicas} until {render_time(self.until)}"


def parse_pin(text: str) -> Pin:
    """Return the pin that an annotation says. Raises PinError."""
    form = _FORM.fullmatch(text.strip())
    until = _parse_moment(form[2]) if form else None
    if form is None or until is None:
        raise PinError(f"{text[:80]!r} is no pin, which is {FORM}")
    return Pin(int(form[1]), until.timestamp())


def find_pin(service: Mapping[str, Any]) -> Pin | None:
    """Return the pin of a raw service, also one that has lapsed; None without one. Raises PinError."""
    text = (service["metadata"].get("annotations") or {}).get(ANNOTATION)
    return None if text is None else parse_pin(str(text))


def find_active_pin(service: Mapping[str, Any], now: float) -> Pin | None:
    """Return the pin that holds at `now`, in seconds since 1970. One that can't be read does not hold."""
    try:
        pin = find_pin(service)
    except PinError:
        return None
    return pin if pin is not None and now < pin.until else None


def parse_moment(text: str) -> float:
    """Return the seconds since 1970 of a time such as 2026-01-02T03:00:00Z. Raises ValueError."""
    moment = _parse_moment(text)
    if moment is None:
        raise ValueError(f"{text!r} is no time with its zone; write it as YYYY-MM-DDTHH:MM:SSZ")
    return moment.timestamp()


def _parse_moment(text: str) -> datetime | None:
    """Return the moment, None where the text has none, or one without its zone or far from our time."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None and moment.year in YEARS else None
