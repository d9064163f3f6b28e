"""Which matrices of a model are quantised, and how: the answer to a module's name."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from millrace_fit.quantization.scheme import Scheme


class Rule(NamedTuple):
    """Modules with one scheme."""

    targets: Sequence[re.Pattern[str]] | None
    """Any of these fits a whole name; None: every linear module."""
    scheme: Scheme | None
    """None: they are not quantised."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """What a checkpoint says about its matrices. The first rule that fits counts."""

    method: str
    """As config.json names it."""
    rules: tuple[Rule, ...]

    def find_scheme(self, name: str) -> Scheme | None:
        """Return a linear module's scheme, by its name in files without `.weight`; None: not quantised."""
        for rule in self.rules:
            if rule.targets is None or any(target.fullmatch(name) for target in rule.targets):
                return rule.scheme
        return None


NOT_QUANTIZED = Quantization("none", ())
