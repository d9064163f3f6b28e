"""`python -m testing.rules`: what keeps tests cheap and apart, checked by reading them.

    import     tests import no end-to-end test's module, end-to-end tests import no test's, and nobody imports
               a conftest or a test file: what they share is in testing/
    sleep      no literal sleep of 0.1 s or more: wait for what happens, or inject the clock
    cluster    no cluster of a file's own: take the fixture, which all files of a worker share
    product    no cross-product of more than 24 cases: a table has each value, and where the code branches
    examples   no `max_examples`: the profiles say how many

`testing/exceptions.toml` counts today's exceptions by file. A count may only shrink.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import NamedTuple

from testing.affected.imports import list_imported

ROOT = Path(__file__).resolve().parents[1]
EXCEPTIONS = ROOT / "testing" / "exceptions.toml"
FOLDERS = ("tests", "e2e", "testing", "benchmarks", "development")
RIG = ("tests/cluster/", "tests/cluster_nodes/", "tests/development/", "e2e/cluster/")
"""Tests of the local cluster, and the cluster."""
MOST_SECONDS = 0.1
MOST_CASES = 24
HINT = "`python -m pydoc testing.rules` says what to do instead"


class Breach(NamedTuple):
    """A line that breaks a rule."""

    rule: str
    file: str
    line: int


def main() -> int:
    """Print each file that breaks a rule more often than it may, or less; return whether there is one."""
    breaches = [breach for file in list_files() for breach in find_breaches(file, (ROOT / file).read_text())]
    said = list(compare(breaches, tomllib.loads(EXCEPTIONS.read_text())))
    print("\n".join(said) or "tests: every rule holds")
    return int(bool(said))


def list_files() -> list[str]:
    """Return the Python files that the rules are for."""
    found = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def compare(breaches: Iterable[Breach], allowed: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """Yield what a file breaks more often than it is excepted, and exceptions that nothing needs any more."""
    lines: dict[tuple[str, str], list[int]] = {}
    for breach in breaches:
        lines.setdefault((breach.rule, breach.file), []).append(breach.line)
    excepted = {(rule, file): count for rule, files in allowed.items() for file, count in files.items()}
    for rule, file in sorted(lines.keys() | excepted.keys()):
        found, most = lines.get((rule, file), []), excepted.get((rule, file), 0)
        if len(found) > most:
            yield f"{file}: {rule}: lines {found}, of which {most} are excepted; {HINT}"
        elif len(found) < most:
            yield f"{file}: {rule}: only {len(found)} left; write so under [{rule}] in {EXCEPTIONS.name}"


def find_breaches(file: str, text: str) -> Iterator[Breach]:
    """Yield every breach in a file."""
    tree = ast.parse(text)
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    lists = {name.id: node.value for node in assigned for name in names_of(node)}
    for node in ast.walk(tree):
        for rule, is_broken in RULES.items():
            if is_broken(file, node):
                yield Breach(rule, file, node.lineno)  # type: ignore[attr-defined]
        if breaks_product(node, lists):
            yield Breach("product", file, node.lineno)  # type: ignore[attr-defined]


def breaks_import(file: str, node: ast.AST) -> bool:
    """Whether an import crosses from tests to end-to-end tests or back, or is of a conftest or test file."""
    if not isinstance(node, ast.Import | ast.ImportFrom):
        return False
    return any(_is_forbidden(file, name) for name in list_imported(node))


def _is_forbidden(file: str, module: str) -> bool:
    top, last = module.split(".", maxsplit=1)[0], module.rsplit(".", 1)[-1]
    if top in ("tests", "e2e") and (last == "conftest" or last.startswith("test_")):
        return True
    if file.startswith("tests/"):
        return top == "e2e" and not file.startswith(RIG)
    return top == "tests"


def breaks_sleep(file: str, node: ast.AST) -> bool:
    """Whether a call sleeps for a written time of 0.1 s or more."""
    return (
        file.startswith(("tests/", "e2e/"))
        and not file.startswith("e2e/cluster/")
        and isinstance(node, ast.Call)
        and name_of(node.func) == "sleep"
        and bool(node.args)
        and isinstance(node.args[0], ast.Constant)
        and isinstance(seconds := node.args[0].value, int | float)
        and seconds >= MOST_SECONDS
    )


def breaks_cluster(file: str, node: ast.AST) -> bool:
    """Whether an end-to-end test starts a cluster of its own."""
    return (
        file.startswith("e2e/test_") and isinstance(node, ast.Call) and name_of(node.func) == "LocalCluster"
    )


def breaks_product(node: ast.AST, lists: Mapping[str, ast.expr]) -> bool:
    """Whether a test multiplies lists of parameters, written there or in its file, to more than 24 cases."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    counts = [count for decorator in node.decorator_list if (count := count_cases(decorator, lists))]
    return len(counts) > 1 and prod(counts) > MOST_CASES


def count_cases(decorator: ast.expr, lists: Mapping[str, ast.expr]) -> int:
    """Return how many values `pytest.mark.parametrize` is given; 0 where that can't be read."""
    if not isinstance(decorator, ast.Call) or name_of(decorator.func) != "parametrize":
        return 0
    values = decorator.args[1] if len(decorator.args) > 1 else None
    if isinstance(values, ast.Name):
        values = lists.get(values.id)
    return len(values.elts) if isinstance(values, ast.List | ast.Tuple) else 0


def names_of(node: ast.Assign) -> list[ast.Name]:
    """Return the names that a statement assigns to."""
    return [target for target in node.targets if isinstance(target, ast.Name)]


def breaks_examples(file: str, node: ast.AST) -> bool:
    """Whether a file says how many examples Hypothesis tries."""
    is_test = bool(re.search(r"/test_\w+\.py$", file))
    return is_test and isinstance(node, ast.Call) and any(one.arg == "max_examples" for one in node.keywords)


def name_of(function: ast.expr) -> str:
    """Return the last part of what is called."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


RULES = {
    "import": breaks_import,
    "sleep": breaks_sleep,
    "cluster": breaks_cluster,
    "examples": breaks_examples,
}


if __name__ == "__main__":
    sys.exit(main())
