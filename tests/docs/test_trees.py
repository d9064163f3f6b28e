"""What a docstring draws is what the code has: exception trees, and the life of a replica."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from millrace_runtime.replica import lifecycle

ROOT = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = [ROOT / "operator", ROOT / "runtime", ROOT / "kernels", ROOT]
PACKAGES = ["operator", "runtime", "kernels", "benchmarks", "e2e"]
FILES = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("errors.py"))
ROOT_LINE = re.compile(r"([A-Z]\w+)(?: {2,}.*)?")
BRANCH_LINE = re.compile(r"((?:│   |    )*)(?:├── |└── )([A-Z]\w+(?:, [A-Z]\w+)*).*")
ARROW_LINE = re.compile(r"([A-Z]+) +--> ([A-Z]+) .*")


class Branch(NamedTuple):
    """An exception class and the one above it, if that is drawn too."""

    name: str
    parent: str | None


class Arrow(NamedTuple):
    """A stage and one that may follow it."""

    before: str
    after: str


def load(file: Path) -> ModuleType:
    root = next(root for root in SOURCE_ROOTS if file.is_relative_to(root))
    return importlib.import_module(".".join(file.relative_to(root).with_suffix("").parts))


def drawn_branches(docstring: str) -> Iterator[Branch]:
    path: list[str] = []
    for line in docstring.splitlines():
        if root := ROOT_LINE.fullmatch(line):
            path = [root[1]]
            yield Branch(root[1], None)
        elif branch := BRANCH_LINE.fullmatch(line):
            path = path[: len(branch[1]) // 4 + 1]
            names = branch[2].split(", ")
            yield from (Branch(name, path[-1]) for name in names)
            path.append(names[-1])


def real_branches(module: ModuleType) -> Iterator[Branch]:
    values = [value for value in vars(module).values() if isinstance(value, type)]
    own = [value for value in values if value.__module__ == module.__name__ and issubclass(value, Exception)]
    for exception in own:
        parent = exception.__base__
        yield Branch(exception.__name__, parent.__name__ if parent in own else None)


def test_there_are_trees_to_check() -> None:
    assert len(FILES) >= 12


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_the_tree_that_is_drawn_is_the_tree_of_classes(file: Path) -> None:
    module = load(file)
    real = set(real_branches(module))
    if len(real) > 1:
        assert set(drawn_branches(module.__doc__ or "")) == real


def test_the_life_of_a_replica_is_drawn_as_its_table_has_it() -> None:
    lines = (lifecycle.__doc__ or "").splitlines()
    drawn = {Arrow(arrow[1], arrow[2]) for line in lines if (arrow := ARROW_LINE.fullmatch(line))}
    table = lifecycle.TRANSITIONS
    assert drawn == {Arrow(before.name, after.name) for before in table for after in table[before]}
