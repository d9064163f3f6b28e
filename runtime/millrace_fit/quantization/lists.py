"""The lists of modules in a quantization_config: names, wildcards and regular expressions, all checked."""

import re
from collections.abc import Collection, Iterable, Mapping
from fnmatch import translate
from typing import Any, Final

from millrace_fit.errors import ArchitectureError
from millrace_fit.quantization.quantization import Targets

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
    """Return names of modules around, at the end or in between, and expressions for the beginning."""
    listed = list(names)
    wild = [name for name in listed if not _WILD.isdisjoint(name)]
    check_count(wild)
    patterns = tuple(compile_pattern(rf"(?:{name})(?:(?<=\.)|(?=\.|$))") for name in wild)
    return Targets(runs=frozenset(listed) - frozenset(wild), patterns=patterns)


def read_wildcards(names: Iterable[str]) -> Targets:
    """Return names of modules around, at the end or in between, and file-like wildcards for whole names."""
    listed = list(names)
    wild = [name for name in listed if not _WILD.isdisjoint(name)]
    check_count(wild)
    return Targets(
        runs=frozenset(listed) - frozenset(wild),
        patterns=tuple(re.compile(translate(name[:LONGEST_PATTERN])) for name in wild),
    )
