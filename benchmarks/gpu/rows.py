"""What a step yields: checks, which must hold, and figures, which may have an aim. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Facts = Mapping[str, Any]
"""What explains a row: JSON values."""


class Aim(NamedTuple):
    """A bound that a figure is to keep. To miss it is no error."""

    bound: float
    is_least: bool

    def holds(self, value: float) -> bool:
        """Return whether the value keeps the bound. NaN keeps none."""
        return value >= self.bound if self.is_least else value <= self.bound

    def __str__(self) -> str:
        return f"{'>=' if self.is_least else '<='} {self.bound:g}"


def at_least(bound: float) -> Aim:
    """Return the aim of a figure that is better when larger."""
    return Aim(bound, is_least=True)


def at_most(bound: float) -> Aim:
    """Return the aim of a figure that is better when smaller."""
    return Aim(bound, is_least=False)


@dataclass(frozen=True, slots=True)
class Check:
    """Something that must be so: if not, the campaign fails."""

    name: str
    holds: bool
    facts: Facts = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the row as a part's JSON has it."""
        return {"kind": "check", "name": self.name, "holds": self.holds, "facts": dict(self.facts)}


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that was measured."""

    name: str
    value: float
    unit: str
    aim: Aim | None = None
    facts: Facts = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the row as a part's JSON has it, with the aim judged."""
        judged = {} if self.aim is None else {"aim": str(self.aim), "holds": self.aim.holds(self.value)}
        number = {"kind": "figure", "name": self.name, "value": self.value, "unit": self.unit}
        return number | judged | {"facts": dict(self.facts)}


Row = Check | Figure
