from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from xml.etree import ElementTree as ET

import pytest

from development.seeded_faults.draw import Fault
from development.seeded_faults.judge import TEXT_IS_GONE, Judgement, Run, apply_to, read_report
from development.seeded_faults.mutate import Kind, apply, describe, find_edits, is_python
from development.seeded_faults.nearness import order_tests
from development.seeded_faults.table import print_table


def mutate(body: str, head: str = "async def f(a, b, c):") -> Iterator[tuple[Kind, str]]:
    """Yield each fault of a function with this body: its kind, and the body with it."""
    body = dedent(body).strip("\n")
    source = head + "\n" + "".join(f"    {line}\n" for line in body.split("\n"))
    for edit in find_edits(source):
        faulty = apply(source, edit)
        assert is_python(faulty)
        yield edit.kind, dedent(faulty.removeprefix(head)).strip("\n")


@pytest.mark.parametrize(
    ("kind", "body", "faulty"),
    [
        (Kind.NEGATED_CONDITION, "return a if b else c", "return a if not (b) else c"),
        (Kind.NEGATED_CONDITION, "return a if not b else c", "return a if b else c"),
        (Kind.NEGATED_CONDITION, "return [x for x in a if x]", "return [x for x in a if not (x)]"),
        (Kind.DROPPED_AWAIT, "return (await a).b", "return (a).b"),
        (Kind.OFF_BY_ONE, "return a < b", "return a <= b"),
        (Kind.OFF_BY_ONE, "return (a + b) - 1", "return (a + b)"),
        (Kind.OFF_BY_ONE, "return a[0]", "return a[1]"),
        (Kind.OFF_BY_ONE, "return a[b * 2 :]", "return a[(b * 2) + 1 :]"),
        (Kind.OFF_BY_ONE, "return range(b)", "return range(b + 1)"),
        (Kind.LOST_FENCE, "if a:\n    return b  # why\nreturn c", "pass  # why\nreturn c"),
        (Kind.SWAPPED_ARGUMENT, 'return a("ä", b, c)', 'return a(b, "ä", c)'),
        (Kind.SWAPPED_ARGUMENT, "return a(x=b, y=c)", "return a(x=c, y=b)"),
    ],
)
def test_each_kind_changes_its_place_alone(kind: Kind, body: str, faulty: str) -> None:
    assert (kind, faulty) in mutate(body)


@pytest.mark.parametrize(
    "body",
    [
        'log.warning("%s %s", a[0], await b)',
        "if a:\n    self.logger.info(b, c)",
        "if TYPE_CHECKING:\n    x = a[0]",
        'return f"{a[0]}"',
        "x: tuple[a, 0] = b",
        "return max(a, b)",
        'if a.device.type == "cuda":\n    return b\nreturn c',
    ],
)
def test_what_only_logs_or_types_or_needs_a_gpu_is_left_out(body: str) -> None:
    assert not list(mutate(body))


def test_only_bodies_of_functions_are_at_fault() -> None:
    source = (
        "X = a[0]\n@d(a, b)\nclass A:\n    y = a[0]\n    @d(a, b)\n    def f(self, x=a[0]) -> a[0]: ...\n"
    )
    assert not find_edits(source)
    assert not list(mutate("return a[0]", "def add_kernel(a):"))


def test_an_elif_and_a_guard_that_binds_a_name_are_no_fence() -> None:
    for body in ("if a:\n    b()\nelif c:\n    return", "if (x := a):\n    return\nc(x)"):
        assert Kind.LOST_FENCE not in {kind for kind, _ in mutate(body)}


def test_a_change_has_lines_enough_to_be_found_once() -> None:
    source = "def f(a):\n  x = a[0]\n  y = 1\n  x = a[0]\n"
    changes = [describe(source, edit) for edit in find_edits(source)]
    assert [change.line for change in changes] == [2, 4]
    for change in changes:
        assert source.count(change.before) == 1
    faulty = source.replace(changes[1].before, changes[1].after)
    assert faulty == "def f(a):\n  x = a[0]\n  y = 1\n  x = a[1]\n"


def make_fault(**changed: str) -> Fault:
    values = {"id": "fetch-01", "package": "fetch", "file": "module.py", "before": "a < b", "after": "a <= b"}
    return Fault(line=1, kind=Kind.OFF_BY_ONE, **values | changed)


def test_a_fault_is_taken_out_again_with_the_time_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text("x = a < b\n")
    before = file.stat().st_mtime_ns
    with apply_to(tmp_path, make_fault()) as is_applied:
        assert is_applied
        assert file.read_text() == "x = a <= b\n"
    assert file.read_text() == "x = a < b\n"
    assert file.stat().st_mtime_ns == before
    with apply_to(tmp_path, make_fault(before="b < a")) as is_applied:
        assert not is_applied


@pytest.mark.parametrize(
    ("inside", "run"),
    [
        ("", Run()),
        ("<failure/>", Run(failed=("tests/test_a.py::TestB::test_c[1 - 2]",))),
        ('<error message="failed on setup"/>', Run(failed=("tests/test_a.py::TestB::test_c[1 - 2]",))),
        ('<error message="collection failure"/>', Run(note="does not import", is_last=True)),
    ],
)
def test_a_failing_test_is_a_find_and_a_failing_import_is_none(inside: str, run: Run) -> None:
    place = 'file="tests/test_a.py" classname="tests.test_a.TestB" name="test_c[1 - 2]"'
    assert read_report(ET.fromstring(f"<a><testcase {place}>{inside}</testcase></a>")) == run


def test_the_nearest_tests_come_first(tmp_path: Path) -> None:
    files = {
        "runtime/millrace_folder/module.py": "",
        "runtime/millrace_folder/user.py": "from millrace_folder import module",
        "tests/folder/conftest.py": "",
        "tests/folder/test_module.py": "",
        "tests/folder/test_direct.py": "import millrace_folder.module",
        "tests/folder/test_indirect.py": '"-m", "millrace_folder.user"',
        "tests/folder/test_other.py": "",
        "tests/folder/test_unknown.py": "import torch",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    near, rest = order_tests(tmp_path, "runtime/millrace_folder/module.py", ["tests/folder"])
    assert [Path(name).stem for name in near + rest] == [
        "test_module",
        "test_direct",
        "test_indirect",
        "test_other",
        "test_unknown",
    ]
    assert len(near) == 4


def test_the_table_names_what_was_lost_and_counts_code_that_is_gone_apart(
    capsys: pytest.CaptureFixture[str],
) -> None:
    faults = [make_fault(id=f"fetch-{number}") for number in range(4)]
    before = {f"fetch-{number}": Judgement("a", 1) for number in (0, 1, 2)} | {
        "fetch-3": Judgement(None, 240)
    }
    after = {"fetch-0": Judgement("b", 1), "fetch-1": Judgement(None, 240)}
    after["fetch-2"] = Judgement(None, 0, TEXT_IS_GONE)
    print_table(faults, before, after)
    assert "| fetch | 4 | 4 | 3 | 1 | 2 | 1 | fetch-1 |" in capsys.readouterr().out
