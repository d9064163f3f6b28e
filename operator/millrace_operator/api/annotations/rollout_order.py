"""The annotation that promotes or aborts a revision: the plugin writes it, the operator obeys it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

ANNOTATION = "millrace.dev/rollout"
EXAMPLE = "promote 5f6c0a91d2"
LONGEST = 128
_FORM = re.compile(r"(promote|abort) ([0-9a-f]{1,64})(?: at ([0-9T:.Z+-]{1,40}))?")


class Action(StrEnum):
    """What becomes of a revision."""

    PROMOTE = "promote"
    """It gets all replicas: its canary is over, or it is tried again after it was given up."""
    ABORT = "abort"
    """It is given up."""


class OrderError(ValueError):
    """An annotation that orders nothing; the text says what to write."""


@dataclass(frozen=True)
class Order:
    """What a person has ordered of one revision. Of another one it says nothing."""

    action: Action
    revision: str
    at: str | None = None
    """When, as the API writes times. The same words at another time are another order."""

    def __str__(self) -> str:
        beside = "" if self.at is None else f" at {self.at}"
        return f"{self.action.value} {self.revision}{beside}"


def find_order(service: Mapping[str, Any]) -> Order | None:
    """Return the order on a raw service, None without one. Raises OrderError."""
    text = (service["metadata"].get("annotations") or {}).get(ANNOTATION)
    if text is None:
        return None
    form = _FORM.fullmatch(str(text).strip())
    if form is None:
        raise OrderError(f"{str(text)[:80]!r} is no order; write for example {EXAMPLE!r}")
    return Order(Action(form[1]), form[2], form[3])
