"""The annotations by which people steer one service: a pin, an order for a rollout, a refresh. Pure.

`kubectl millrace` writes them, and the operator obeys them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, Self

from millrace_operator.api.conditions import render_time

PIN_ANNOTATION = "millrace.dev/pin"
PIN_FORM = "COUNT until YYYY-MM-DDTHH:MM:SSZ"
YEARS = range(1900, 9000)
"""A time near the ends of the calendar can't be written in another time zone."""
_PIN_FORM = re.compile(r"([0-9]{1,4}) until (\S{1,40})")


class PinError(ValueError):
    """An annotation that is no pin; the text shows the form of one."""


@dataclass(frozen=True)
class Pin:
    """A count that a person has set, and until when."""

    replicas: int
    until: float
    """Seconds since 1970."""

    def __str__(self) -> str:
        return f"{self.replicas} until {render_time(self.until)}"


def parse_pin(text: str) -> Pin:
    """Return the pin in an annotation's text. Raises PinError."""
    form = _PIN_FORM.fullmatch(text.strip())
    until = _parse_moment(form[2]) if form else None
    if form is None or until is None:
        raise PinError(f"{text[:80]!r} is no pin, which is {PIN_FORM}")
    return Pin(int(form[1]), until.timestamp())


def find_pin(service: Mapping[str, Any]) -> Pin | None:
    """Return the pin of a raw service, also a lapsed one; None without one. Raises PinError."""
    text = (service["metadata"].get("annotations") or {}).get(PIN_ANNOTATION)
    return None if text is None else parse_pin(str(text))


def find_active_pin(service: Mapping[str, Any], now: float) -> Pin | None:
    """Return the pin that holds at `now`, in seconds since 1970. A pin that can't be read does not hold."""
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
    """Return the moment; None if the text has no moment, or one without a time zone or far from our time."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None and moment.year in YEARS else None


ROLLOUT_ANNOTATION = "millrace.dev/rollout"
ROLLOUT_EXAMPLE = "promote 5f6c0a91d2"
LONGEST_ORDER = 128
_ORDER_FORM = re.compile(r"(promote|abort) ([0-9a-f]{1,64})(?: at ([0-9T:.Z+-]{1,40}))?")


class Action(StrEnum):
    """What a person orders for a revision."""

    PROMOTE = "promote"
    """The revision gets all replicas: its canary is over, or it is tried again after it was given up."""
    ABORT = "abort"
    """The revision is given up."""


class OrderError(ValueError):
    """An annotation that is no order; the text says what to write."""


@dataclass(frozen=True)
class Order:
    """A person's order for one revision. It has no meaning for another one."""

    action: Action
    revision: str
    at: str | None = None
    """When, as the API writes times. The same words with another time are another order."""

    def __str__(self) -> str:
        beside = "" if self.at is None else f" at {self.at}"
        return f"{self.action.value} {self.revision}{beside}"


def find_order(service: Mapping[str, Any]) -> Order | None:
    """Return the order on a raw service; None without one. Raises OrderError."""
    text = (service["metadata"].get("annotations") or {}).get(ROLLOUT_ANNOTATION)
    if text is None:
        return None
    form = _ORDER_FORM.fullmatch(str(text).strip())
    if form is None:
        raise OrderError(f"{str(text)[:80]!r} is no order; write for example {ROLLOUT_EXAMPLE!r}")
    return Order(Action(form[1]), form[2], form[3])


REFRESH_ANNOTATION = "millrace.dev/refresh"
LONGEST_REFRESH = 128


class Refresh(NamedTuple):
    """A person's request to ask the model's source again. Its time distinguishes it from an earlier one."""

    revision: str
    """Of the service. If the spec asks for another revision, the annotation has no meaning."""
    at: str

    @classmethod
    def find(cls, service: Mapping[str, Any]) -> Self | None:
        """Return the request on a raw service; None without one, or if the annotation has another form."""
        text = str((service["metadata"].get("annotations") or {}).get(REFRESH_ANNOTATION, ""))
        revision, word, at = text[:LONGEST_REFRESH].partition(" at ")
        return cls(revision, at) if word else None

    def __str__(self) -> str:
        return f"{self.revision} at {self.at}"
