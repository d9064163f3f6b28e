"""What is over its budget is named, and twice of it fails the run."""

import pytest

from testing.budget import ROOT, Budget, Overrun, find_folder, find_overruns, read_budget
from testing.costs import Cost

BUDGET = Budget(
    {"tests/fetch": 10.0, "tests/runtime": 10.0, "tests/runtime/api": 5.0},
    {"units": 60.0, "units-long": 90.0},
    (),
)


def cost(cpu: float) -> Cost:
    return Cost(cpu, 1.0, "gw0")


@pytest.mark.parametrize(
    ("test", "folder"),
    [
        ("tests/runtime/test_a.py::test", "tests/runtime"),
        ("tests/runtime/api/test_a.py::test[1/2]", "tests/runtime/api"),
        ("tests/runtimes/test_a.py::test", ""),
    ],
)
def test_a_test_counts_for_the_innermost_folder(test: str, folder: str) -> None:
    assert find_folder(BUDGET, test) == folder


def test_folders_and_lanes_over_their_budgets_are_found_and_twice_is_a_failure() -> None:
    costs = {
        "tests/fetch/test_a.py::test_1": cost(4.0),
        "tests/fetch/test_a.py::test_2": cost(6.0),
        "tests/runtime/test_a.py::test": cost(11.0),
        "tests/runtime/api/test_a.py::test": cost(10.0),
    }
    found = find_overruns(BUDGET, costs, "units", 61.0)
    assert found == [
        Overrun("tests/runtime", "CPU", 11.0, 10.0),
        Overrun("tests/runtime/api", "CPU", 10.0, 5.0),
        Overrun("lane units", "wall", 61.0, 60.0),
    ]
    assert [one.is_failure for one in found] == [False, True, False]
    assert find_overruns(BUDGET, costs, "", 1e9) == found[:2]
    assert find_overruns(BUDGET, costs, "units-long", 1.0) == []
    assert [one.unit for one in find_overruns(BUDGET, costs, "units-long", 1e9)] == ["wall"]


def test_every_folder_of_tests_has_a_budget_and_every_file_named_is_there() -> None:
    budget = read_budget()
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    assert [file for file in files if not find_folder(budget, file)] == []
    assert [file for file in budget.slowest if not (ROOT / file).exists()] == []
