"""Which files of the repository each of its Python files imports, by reading them.

Not by grimp, which reads packages alone: no folder of tests is one.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path, PurePosixPath

SOURCE_ROOTS = ("operator", "runtime", "kernels")
"""Folders that Python's path names, beside the repository itself."""


def read_imports(root: Path, files: Iterable[str]) -> dict[str, set[str]]:
    """Return for each Python file the files that it imports, all relative to `root`.

    A test file imports the conftest.py of its folder and of those above, too.
    """
    known = [file for file in files if file.endswith(".py")]
    by_module = {name_module(file): file for file in known}
    found: dict[str, set[str]] = {}
    for file in known:
        tree = ast.parse((root / file).read_text())
        found[file] = {by_module[name] for name in list_imported(tree) if name in by_module}
        found[file] |= find_conftests(file, set(known))
    return found


def name_module(file: str) -> str:
    """Return the dotted name by which a file is imported."""
    path = PurePosixPath(file).with_suffix("")
    parts = path.parts[1:] if path.parts[0] in SOURCE_ROOTS else path.parts
    return ".".join(parts[:-1] if path.name == "__init__" else parts)


def list_imported(tree: ast.AST) -> Iterator[str]:
    """Yield the names of modules that a file imports, and of what may be modules in these."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def find_conftests(file: str, known: set[str]) -> set[str]:
    """Return each conftest.py that pytest loads for a test file."""
    if not PurePosixPath(file).name.startswith("test_"):
        return set()
    return {str(parent / "conftest.py") for parent in PurePosixPath(file).parents} & known


def find_importers(imports: Mapping[str, set[str]], changed: Iterable[str]) -> set[str]:
    """Return the changed files and all that import one of them, directly or by way of others."""
    importers: dict[str, set[str]] = {}
    for file, imported in imports.items():
        for one in imported:
            importers.setdefault(one, set()).add(file)
    found: set[str] = set()
    waiting = list(changed)
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.add(file)
            waiting += importers.get(file, ())
    return found


def find_imported(root: Path, file: str) -> frozenset[str]:
    """Return a file and all files that it imports, directly or by way of others, relative to `root`."""
    found: set[str] = set()
    waiting = [file]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += _list_direct(root, one)
    return frozenset(found)


@cache
def _list_direct(root: Path, file: str) -> tuple[str, ...]:
    names = set(list_imported(ast.parse((root / file).read_text())))
    conftests = {str(parent / "conftest.py") for parent in PurePosixPath(file).parents}
    known = {one for one in conftests if (root / one).is_file()}
    imported = filter(None, (_find_module(root, name) for name in names))
    return (*imported, *find_conftests(file, known))


@cache
def _find_module(root: Path, name: str) -> str | None:
    parts = name.split(".")
    for source in ("", *SOURCE_ROOTS):
        path = PurePosixPath(source, *parts)
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if (root / file).is_file():
                return str(file)
    return None
