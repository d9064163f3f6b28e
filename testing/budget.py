"""What the tests may cost: tests/budget.toml, held against what a run has cost.

A run prints each folder and each lane that is over its budget, and fails where one took twice of it. The
budget of a folder is in CPU seconds, so that it hardly depends on what else a machine does; that of a lane is
in wall seconds on two cores. Of several folders around a test the innermost that has a budget counts. A long
lane has its wall seconds alone: its thousands of examples are no cost of `make test`.
"""

import time
import tomllib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from testing.costs import Cost, Costs

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "tests" / "budget.toml"
FAILS_AT = 2.0
LONG = "-long"
"""The end of the names of lanes whose tests `make test` leaves out."""


@dataclass(frozen=True)
class Budget:
    """Seconds: of CPU by folder, of wall time by lane; `slowest` are the files that a run begins with."""

    folders: Mapping[str, float]
    lanes: Mapping[str, float]
    slowest: tuple[str, ...]


@dataclass(frozen=True)
class Overrun:
    """Something that took longer than it may."""

    name: str
    unit: str
    seconds: float
    allowed_seconds: float

    @property
    def is_failure(self) -> bool:
        """Whether it took so much that the run fails."""
        return self.seconds >= FAILS_AT * self.allowed_seconds

    def __str__(self) -> str:
        """Say what to look at."""
        return f"{self.name}: {self.seconds:.0f} of {self.allowed_seconds:.0f} {self.unit} seconds"


def read_budget(file: Path = FILE) -> Budget:
    """Read the file. Raises KeyError where a table is missing."""
    found = tomllib.loads(file.read_text())
    return Budget(found["cpu_seconds"], found["wall_seconds"], tuple(found["slowest"]["files"]))


def find_overruns(budget: Budget, costs: Mapping[str, Cost], lane: str, wall_seconds: float) -> list[Overrun]:
    """Return what is over its budget, folders first."""
    spent: dict[str, float] = defaultdict(float)
    for test, cost in costs.items():
        spent[find_folder(budget, test)] += cost.cpu
    found = [
        Overrun(folder, "CPU", spent[folder], allowed)
        for folder, allowed in budget.folders.items()
        if spent[folder] > allowed and not lane.endswith(LONG)
    ]
    if lane and wall_seconds > budget.lanes[lane]:
        found.append(Overrun(f"lane {lane}", "wall", wall_seconds, budget.lanes[lane]))
    return found


def find_folder(budget: Budget, test: str) -> str:
    """Return the innermost folder with a budget around a test, or an empty string."""
    around = [folder for folder in budget.folders if test.startswith(f"{folder}/")]
    return max(around, key=len, default="")


class BudgetReport:
    """Prints what is over its budget at the end of a run; a pytest plugin."""

    def __init__(self, costs: Costs, lane: str) -> None:
        self._costs = costs
        self._lane = lane
        self._budget = read_budget()
        self._began = time.monotonic()
        self._overruns: list[Overrun] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run that passed, where something took twice of its budget."""
        wall_seconds = time.monotonic() - self._began
        self._overruns = find_overruns(self._budget, self._costs.by_test, self._lane, wall_seconds)
        if session.exitstatus == pytest.ExitCode.OK and any(one.is_failure for one in self._overruns):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print them."""
        if self._overruns:
            terminalreporter.section("over budget (tests/budget.toml)")
        for overrun in self._overruns:
            terminalreporter.line(f"{'FAILED' if overrun.is_failure else 'over  '} {overrun}")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Name the flag."""
    parser.addoption("--lane", default="", help="which lane of tests/budget.toml this run is")


def pytest_configure(config: pytest.Config) -> None:
    """Only the run itself judges, not its workers."""
    lane = config.getoption("lane")
    if lane and lane not in read_budget().lanes:
        raise pytest.UsageError(f"--lane {lane}: tests/budget.toml has no such lane under [wall_seconds]")
    if not hasattr(config, "workerinput"):
        costs = config.pluginmanager.getplugin("costs")
        assert isinstance(costs, Costs)
        config.pluginmanager.register(BudgetReport(costs, lane), "budget-report")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the slowest files: begun last, one alone would keep a worker busy."""
    ranks = {file: rank for rank, file in enumerate(read_budget().slowest)}
    items.sort(key=lambda item: ranks.get(item.nodeid.partition("::")[0], len(ranks)))
