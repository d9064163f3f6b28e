"""Which tests are nearest to a module: those that name it, then those that import what imports it."""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOTS = ("operator", "runtime", "kernels", "")
"""Folders whose modules are imported by their path below it."""
FOLDERS = ("operator", "runtime", "kernels", "tests")
CLOSEST = 1
"""Imports between a test and the module, so that it is near."""
FEWEST_NEAR = 4
NEVER = 99
_NAMED = re.compile(r"""["'](millrace_\w+(?:\.\w+)+)["']""")
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ ]+([\w.]+)[ ]+import[ ]+(\([^)]*\)|[^\n(]+)|import[ ]+([\w., ]+)$)", re.MULTILINE
)


def order_tests(tree: Path, module_path: str, tests: list[str]) -> tuple[list[str], list[str]]:
    """Return the test files of these files and folders, the near ones and the rest, the nearest first."""
    distances = _measure(tree, _name_module(module_path))
    source = PurePosixPath(module_path)
    keys: dict[str, tuple[bool, int, bool, int]] = {}
    for path in _list_test_files(tree, tests):
        is_mirrored = source.parent.name.removeprefix("millrace_") in PurePosixPath(path).parts
        is_own = is_mirrored and PurePosixPath(path).stem == f"test_{source.stem}"
        distance = distances.get(_name_module(path), NEVER)
        keys[path] = (not is_own, distance, not is_mirrored, (tree / path).stat().st_size)
    ordered = sorted(keys, key=lambda path: (keys[path], path))
    num_near = sum(not other or distance <= CLOSEST for other, distance, _, _ in keys.values())
    num_near = max(num_near, FEWEST_NEAR)
    return ordered[:num_near], ordered[num_near:]


def _list_test_files(tree: Path, tests: list[str]) -> Iterator[str]:
    for name in tests:
        found = sorted((tree / name).rglob("test_*.py")) if (tree / name).is_dir() else [tree / name]
        yield from (path.relative_to(tree).as_posix() for path in found if path.exists())


def _measure(tree: Path, module: str) -> dict[str, int]:
    """Return how many imports lie between each module and this one."""
    importers = _read_importers(tree)
    distances = {module: 0}
    new = [module]
    while new:
        found = {other for name in new for other in importers[name]} - distances.keys()
        distances |= dict.fromkeys(found, max(distances.values()) + 1)
        new = sorted(found)
    return distances


def _read_importers(tree: Path) -> defaultdict[str, set[str]]:
    """Return for each name who imports it. A test imports the conftest files of its folders, too."""
    importers: defaultdict[str, set[str]] = defaultdict(set)
    for path in (path for folder in FOLDERS for path in (tree / folder).rglob("*.py")):
        relative = path.relative_to(tree)
        module = _name_module(relative.as_posix())
        for name in name_imports(path.read_text(), module):
            importers[name].add(module)
        for folder in relative.parents:
            importers[_name_module((folder / "conftest.py").as_posix())].add(module)
    return importers


def _name_module(path: str) -> str:
    root = next(root for root in ROOTS if path.startswith(f"{root}/") or not root)
    return path.removeprefix(f"{root}/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def name_imports(source: str, module: str) -> Iterator[str]:
    """Yield what this module imports or starts, wherever in its text: modules, and names that may be."""
    yield from _NAMED.findall(source)
    for package, names, modules in _IMPORT.findall(source):
        if modules:
            yield from (name.split()[0] for name in modules.split(","))
            continue
        level = len(package) - len(package.lstrip("."))
        above = module.split(".")[:-level] if level else []
        base = ".".join([*above, *filter(None, [package.lstrip(".")])])
        yield base
        yield from (f"{base}.{name.split()[0]}" for name in names.strip("()").split(",") if name.strip())
