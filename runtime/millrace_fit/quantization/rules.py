"""Which matrices of a model are quantised, and how, by the lists of modules in a quantization_config.

It checks each name, wildcard and regular expression of these lists.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import translate
from typing import Any, Final, NamedTuple

from millrace_fit.errors import ArchitectureError
from millrace_fit.quantization.scheme import Scheme

MOST_NAMES: Final = 100_000
MOST_PATTERNS: Final = 500
"""Names that are compared with each module: expressions, wildcards and parts of names."""
LONGEST_PATTERN: Final = 2000
MOST_REPEATS: Final = 3
"""Each one multiplies the time by a name's length. GPTQModel's own examples have three."""
_NESTED: Final = re.compile(r"\)[*+{]")
"""A repeated group, which can take exponential time. No published config has one."""
_LITERAL: Final = re.compile(r"\\.|\[\^?\]?[^]]*\]")
_REPEAT: Final = re.compile(r"[*+]|\{\d*,\d*\}")
_OPTION: Final = re.compile(r"(?<![*+}?(])\?")
_WILD: Final = frozenset("*?[](){}|^$+\\")
_INNER: Final = "language_model."
"""Before the names of the text part in files, in a model that has more parts."""


@dataclass(frozen=True, slots=True)
class Targets:
    """The modules that a list of config.json names. One match in any of these fields is enough."""

    names: frozenset[str] = frozenset()
    """Whole names."""
    runs: frozenset[str] = frozenset()
    """Runs of a name's words between dots: modules around it, its end, or some in between."""
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
    """Whether it leaves out matrices although config.json may not say so: their stored tensors decide."""


HEADS: Final = Targets(patterns=(re.compile(r"(.*\.)?lm_head$"),))
"""The head, which most methods leave as it is without saying so."""
ROUTERS: Final = Targets(patterns=(re.compile(r".*\.(gate|router|shared_expert_gate)$"),))
"""Routers of experts, which are linear modules in some versions of transformers only."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """A checkpoint's rules about its matrices. The first one that fits a module counts."""

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
        """Return the same for a checkpoint with tensors of these names, which decide about assumed rules."""
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
    """Return that all linear modules have a scheme, except some. The `first` rules come before."""
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


def read_names(raw: Mapping[str, Any], *fields: str, most: int = MOST_NAMES) -> list[str]:
    """Return the names in the first of these fields that is there. Raises ArchitectureError."""
    field = next((one for one in fields if raw.get(one) is not None), None)
    if field is None:
        return []
    names = raw[field]
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise ArchitectureError(f"config.json has {field} {str(names)[:80]!r}; it must be a list of names")
    if len(names) > most:
        raise ArchitectureError(f"config.json has {len(names)} names in {field}; at most {most} are read")
    return names


def compile_pattern(text: str) -> re.Pattern[str]:
    """Return a regular expression of config.json. Raises ArchitectureError."""
    shown = text[:80]
    if len(text) > LONGEST_PATTERN or _NESTED.search(text) or _count_repeats(text) > MOST_REPEATS:
        raise ArchitectureError(
            f"config.json has the expression {shown!r}, which could take forever: write it without repeated "
            f"groups and with at most {MOST_REPEATS} of *, + and ?, or list the names"
        )
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ArchitectureError(
            f"config.json has {shown!r}, which is no regular expression: {error}"
        ) from error


def _count_repeats(text: str) -> int:
    """Return the repeats without an end, or the options if there are more.

    One at the end costs nothing: it takes what is left.
    """
    special = _LITERAL.sub("", text).removesuffix(".*")
    return max(len(_REPEAT.findall(special)), len(_OPTION.findall(special)))


def check_count(names: Collection[str]) -> None:
    """Raise ArchitectureError for too many expressions."""
    if len(names) > MOST_PATTERNS:
        raise ArchitectureError(
            f"config.json has {len(names)} expressions for modules; at most {MOST_PATTERNS} are read: list "
            "the names"
        )


def read_exact(names: Iterable[str]) -> Targets:
    """Return whole names and, after `re:`, expressions for their beginning."""
    listed = list(names)
    expressions = [name.removeprefix("re:") for name in listed if name.startswith("re:")]
    check_count(expressions)
    whole = frozenset(name for name in listed if not name.startswith("re:"))
    return Targets(names=whole, patterns=tuple(map(compile_pattern, expressions)))


def read_runs(names: Iterable[str]) -> Targets:
    """Return runs of a name's words, and expressions for its beginning."""
    listed = list(names)
    wild = [name for name in listed if not _WILD.isdisjoint(name)]
    check_count(wild)
    patterns = tuple(compile_pattern(rf"(?:{name})(?:(?<=\.)|(?=\.|$))") for name in wild)
    return Targets(runs=frozenset(listed) - frozenset(wild), patterns=patterns)


def read_wildcards(names: Iterable[str]) -> Targets:
    """Return runs of a name's words, and file-like wildcards for whole names."""
    listed = list(names)
    wild = [name for name in listed if not _WILD.isdisjoint(name)]
    check_count(wild)
    return Targets(
        runs=frozenset(listed) - frozenset(wild),
        patterns=tuple(re.compile(translate(name[:LONGEST_PATTERN])) for name in wild),
    )
