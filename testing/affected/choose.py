"""Decides which tests a change can turn red. Reads files; runs nothing."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from testing.affected.imports import find_importers, read_imports
from testing.affected.unseen import ALL, SMOKE, list_readers


@dataclass(frozen=True)
class Choice:
    """`units` are files of tests without a cluster, `end_to_end` those with one."""

    units: tuple[str, ...]
    end_to_end: tuple[str, ...]


def choose_tests(root: Path, files: Iterable[str], changed: Iterable[str]) -> Choice:
    """Return the tests for the changed files, of all `files` below `root`; paths are relative to it.

    A deleted module has all tests: nobody can read any more who imported it.
    """
    known, changes = list(files), set(changed)
    importers = find_importers(read_imports(root, known), changes)
    gone = any(file.endswith(".py") and not is_test(file) for file in changes.difference(known))
    readers = {*list_readers(changes), *(ALL if gone else ())}
    chosen = [file for file in known if is_test(file) and (file in importers or is_in(file, readers))]
    units = [file for file in chosen if file.startswith("tests/")]
    own = [file for file in chosen if file.startswith("e2e/") and file in changes]
    has_smoke = bool(units) or any(file.startswith("e2e/") and file.endswith(".py") for file in changes)
    return Choice(tuple(units), (*own, SMOKE) if has_smoke else ())


def is_test(file: str) -> bool:
    """Whether pytest collects the file."""
    path = PurePosixPath(file)
    return path.name.startswith("test_") and path.suffix == ".py"


def is_in(file: str, places: Iterable[str]) -> bool:
    """Whether the file is one of the places, or in a folder that is."""
    return any(file == place or file.startswith(f"{place}/") for place in places)


def is_everything(choice: Choice, files: Iterable[str]) -> bool:
    """Whether all unit tests are chosen."""
    return len(choice.units) == sum(is_test(file) and is_in(file, ALL) for file in files)
