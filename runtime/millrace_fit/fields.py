"""The fields of a config.json, each checked when it is read."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from millrace_fit.errors import ArchitectureError

MAX_COUNT: Final = 2**53 - 1
"""The largest count: not every JSON parser reads larger numbers."""
MOST_LAYERS: Final = 1000
MAX_NUMBERS: Final = 1024
"""The most numbers in one list."""


class Fields:
    """A config.json. Every method raises ArchitectureError, which names the field."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw

    def __contains__(self, name: str) -> bool:
        return name in self.raw

    def with_defaults(self, defaults: Mapping[str, Any]) -> "Fields":
        """Return these fields, and the defaults of missing ones."""
        return Fields({**defaults, **self.raw})

    def has(self, name: str) -> bool:
        """Whether a field is there and not null."""
        return self.raw.get(name) is not None

    def count(self, name: str, default: int | None = None, *, least: int = 1, most: int = MAX_COUNT) -> int:
        """Return a whole number. A missing field and null have the default; without one they are refused."""
        value = self.raw.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ArchitectureError(
                f"config.json has {name} {value!r}; it must be a whole number of at least {least}"
            )
        if value > most:
            raise ArchitectureError(f"config.json has {name} {value}; it must be at most {most}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return a number above 0. A missing field and null have the default."""
        value = self.raw.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ArchitectureError(f"config.json has {name} {value!r}; it must be a number")
        if not _is_finite(value) or value <= 0:
            raise ArchitectureError(f"config.json has {name} {value!r}; it must be above 0 and finite")
        return float(value)

    def numbers(self, name: str) -> tuple[float, ...]:
        """Return a list of numbers above 0."""
        values = self.raw.get(name)
        if not isinstance(values, list) or len(values) > MAX_NUMBERS:
            raise ArchitectureError(f"config.json has {name} {values!r:.80}; it must be a list of numbers")
        return tuple(Fields({name: value}).number(name) for value in values)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return true or false. A missing field and null have the default."""
        value = self.raw.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise ArchitectureError(f"config.json has {name} {value!r}; it must be true or false")
        return value

    def items(self, name: str, num_items: int, *allowed: Any) -> Sequence[Any] | None:
        """Return a list with an item of these for each layer; None for a missing field and null."""
        values = self.raw.get(name)
        if values is None:
            return None
        if not isinstance(values, list):
            raise ArchitectureError(f"config.json has {name} {values!r}; it must be a list")
        if len(values) < num_items:
            raise ArchitectureError(
                f"config.json has {name} of {len(values)} items; it must have one for each layer"
            )
        for value in values[:num_items]:
            if value not in allowed or isinstance(value, bool):
                names = " or ".join(map(repr, allowed))
                raise ArchitectureError(f"config.json has {value!r} in {name}; supported are {names}")
        return values[:num_items]

    def refuse(self, name: str, *, unless: Sequence[Any], advice: str) -> None:
        """Refuse a field that has another value than these."""
        if (value := self.raw.get(name)) not in unless:
            raise ArchitectureError(f"config.json has {name} {value!r}; {advice}")

    @property
    def num_layers(self) -> int:
        """The count of layers."""
        return self.count("num_hidden_layers", most=MOST_LAYERS)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False
