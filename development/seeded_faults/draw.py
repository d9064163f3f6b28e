"""Draws the faults from the sources of one commit."""

import random
import subprocess
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import PurePosixPath

from development.seeded_faults.mutate import Edit, Kind, apply, describe, find_edits, is_python

BASE = "ad05b10"
SEED = 20261126
NOT_DRAWN = ("triton_", "gpu")
"""How the names of files begin that only a GPU runs."""


@dataclass(frozen=True)
class Package:
    """What is drawn from folders, and which tests judge it."""

    name: str
    num_faults: int
    folders: tuple[str, ...]
    tests: tuple[str, ...]


PACKAGES = (
    Package(
        "operator",
        20,
        ("operator",),
        ("tests/operator", "tests/kubectl", "tests/kubernetes", "tests/node_cache", "tests/monitoring"),
    ),
    Package(
        "runtime",
        20,
        ("runtime/millrace_runtime", "kernels/millrace_kernels"),
        ("tests/runtime", "tests/kernels", "tests/fit"),
    ),
    Package(
        "gateway",
        10,
        ("runtime/millrace_gateway",),
        ("tests/gateway", "tests/runtime/test_listener.py"),
    ),
    Package("fetch", 10, ("runtime/millrace_fetch",), ("tests/fetch",)),
)


@dataclass(frozen=True)
class Fault:
    """A fault of a file: these lines, which it has once, become others."""

    id: str
    package: str
    file: str
    line: int
    kind: Kind
    before: str
    after: str


def draw_faults() -> list[Fault]:
    """Return all packages' faults: the kinds in turn, each file at most once, each place equally likely.

    A place is drawn again where what it makes is no Python.
    """
    return [fault for package in PACKAGES for fault in _draw_package(package, random.Random(SEED))]  # noqa: S311


def _draw_package(package: Package, draw: random.Random) -> list[Fault]:
    sources = {path: _read(path) for path in _list_sources(package)}
    places = [(path, edit) for path, source in sources.items() for edit in find_edits(source)]
    faults: list[Fault] = []
    used: set[str] = set()
    for number, kind in enumerate(islice(cycle(Kind), package.num_faults), start=1):
        path, edit = _draw_place(places, kind, used, sources, draw)
        used.add(path)
        change = describe(sources[path], edit)
        name = f"{package.name}-{number:02d}"
        faults.append(Fault(name, package.name, path, change.line, kind, change.before, change.after))
    return faults


def _draw_place(
    places: list[tuple[str, Edit]], kind: Kind, used: set[str], sources: dict[str, str], draw: random.Random
) -> tuple[str, Edit]:
    fresh = [place for place in places if place[1].kind is kind and place[0] not in used]
    while True:
        path, edit = draw.choice(fresh)
        if is_python(apply(sources[path], edit)):
            return path, edit


def _list_sources(package: Package) -> list[str]:
    listed = _git("ls-tree", "-r", "--name-only", BASE, *package.folders).splitlines()
    return [path for path in sorted(listed) if _is_drawn(PurePosixPath(path))]


def _is_drawn(path: PurePosixPath) -> bool:
    return path.suffix == ".py" and not path.name.startswith(NOT_DRAWN)


def _read(path: str) -> str:
    return _git("show", f"{BASE}:{path}")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout
