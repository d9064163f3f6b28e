"""Prompts of a load that no prefix cache knows, so that each of them is computed."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

from testing.traffic import Target

NUMBER = "000000 "
"""How a prompt begins: each request has another number there."""


@dataclasses.dataclass(frozen=True)
class DistinctTarget(Target):
    """Each request has a number of its own at the begin of its prompt."""

    numbers: Iterator[int] = dataclasses.field(default_factory=itertools.count, repr=False)
    """Those that no request has had. Targets of one server share them."""

    def body(self, number: int) -> dict[str, Any]:
        """Return the JSON of request `number`."""
        prompt = f"{next(self.numbers):0{len(NUMBER) - 1}} {self.prompt.removeprefix(NUMBER)}"
        return super().body(number) | {"prompt": prompt}
