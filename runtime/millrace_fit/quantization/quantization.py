"""Which matrices of a model are quantised, and how: the answer to a module's name."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from millrace_fit.quantization.scheme import Scheme

_INNER: Final = "language_model."
"""Before the names of the text part in files, in a model that has more parts."""


@dataclass(frozen=True, slots=True)
class Targets:
    """The modules that a list of config.json names. Any part may fit."""

    names: frozenset[str] = frozenset()
    """Whole names."""
    runs: frozenset[str] = frozenset()
    """Some of a name's words between dots: the modules around it, its end, or one in between."""
    pieces: tuple[str, ...] = ()
    """Any part of a name."""
    patterns: tuple[re.Pattern[str], ...] = ()
    """They fit the beginning of a name."""

    def has(self, name: str) -> bool:
        """Whether a module is one of them."""
        return any(self._has(alias) for alias in _list_aliases(name))

    def _has(self, name: str) -> bool:
        return (
            name in self.names
            or any(piece in name for piece in self.pieces)
            or any(pattern.match(name) for pattern in self.patterns)
            or (bool(self.runs) and not self.runs.isdisjoint(_list_runs(name)))
        )


class Rule(NamedTuple):
    """Modules with one scheme."""

    targets: Targets | None
    """None: every linear module."""
    scheme: Scheme | None
    """None: they are not quantised."""
    is_assumed: bool = False
    """Whether it leaves matrices out without config.json surely saying so: their tensors know better."""


HEADS: Final = Targets(patterns=(re.compile(r"(.*\.)?lm_head$"),))
"""The head, which most methods leave as it is without saying so."""
ROUTERS: Final = Targets(patterns=(re.compile(r".*\.(gate|router|shared_expert_gate)$"),))
"""Routers of experts, which are linear modules in some versions of transformers only."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """What a checkpoint says about its matrices. The first rule that fits counts."""

    method: str
    """As config.json names it."""
    rules: tuple[Rule, ...]
    stored: frozenset[str] | None = None
    """The names of the checkpoint's tensors, which decide what config.json leaves open; None: not known."""
    stored_names: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The last word of a module's name in files, where it is part of a larger one."""

    def find_scheme(self, name: str) -> Scheme | None:
        """Return a linear module's scheme, by its name in files without `.weight`; None: not quantised."""
        is_assumed, names = False, [one for one in (name, self.name_stored(name)) if one is not None]
        for rule in self.rules:
            if rule.targets is None or any(rule.targets.has(one) for one in names):
                if rule.is_assumed and self.stored is not None:
                    is_assumed = True
                    continue
                return self._fit(name, rule.scheme, is_assumed=is_assumed)
        return None

    def fit_to(self, names: Iterable[str]) -> "Quantization":
        """Return the same for a checkpoint with tensors of these names, which decide what is left open."""
        return replace(self, stored=frozenset(names))

    def name_stored(self, name: str) -> str | None:
        """Return the larger module of files that a module is a part of, if it is one."""
        around, _, last = name.rpartition(".")
        return f"{around}.{self.stored_names[last]}" if last in self.stored_names else None

    def _fit(self, name: str, scheme: Scheme | None, *, is_assumed: bool) -> Scheme | None:
        """Return a matrix's scheme as its tensors have it; None if it was left out, and they agree."""
        if scheme is None or self.stored is None:
            return scheme
        marks = [mark for mark in scheme.marks if f"{name}.{mark}" in self.stored]
        if is_assumed and not marks:
            return None
        return scheme.rename_scale(marks)

    @property
    def is_quantized(self) -> bool:
        """Whether some matrices are quantised in files."""
        return any(rule.scheme is not None for rule in self.rules)

    @property
    def is_widened(self) -> bool:
        """Whether all of these are plain numbers once they are loaded."""
        return all(rule.scheme is None or rule.scheme.is_widened for rule in self.rules)


NOT_QUANTIZED: Final = Quantization("none", ())


def quantize_all_but(
    method: str, scheme: Scheme, *left_out: Targets, first: tuple[Rule, ...] = ()
) -> Quantization:
    """Return that all linear modules have a scheme, except some. The `first` rules count before."""
    exceptions = (Rule(targets, None, is_assumed=targets in (HEADS, ROUTERS)) for targets in left_out)
    return Quantization(method, (*first, *exceptions, Rule(None, scheme)))


def _list_aliases(name: str) -> Iterator[str]:
    """Yield a module's names: in files, in the text part alone, and in transformers' modules."""
    yield name
    if name.startswith(_INNER):
        alone = name.removeprefix(_INNER)
        yield alone
        yield f"model.{_INNER}{alone.removeprefix('model.')}"


def _list_runs(name: str) -> Iterator[str]:
    words = name.split(".")
    for begin in range(len(words)):
        for end in range(begin + 1, len(words) + 1):
            yield ".".join(words[begin:end])
