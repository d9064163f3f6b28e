"""What each test costs: CPU seconds of its process and of the children that it reaped, and wall seconds.

`--costs FILE` writes them as JSON, by test. Under pytest-xdist each worker measures its own tests.
"""

import json
import os
import time
from collections.abc import Generator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

PROPERTY = "cost"


@dataclass(frozen=True)
class Cost:
    """`cpu` and `wall` in seconds."""

    cpu: float
    wall: float
    worker: str


class Costs:
    """Collects what the tests of a run cost; a pytest plugin."""

    def __init__(self) -> None:
        self.by_test: dict[str, Cost] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Measure a test with its fixtures; the worker's last report carries it."""
        began, cpu = time.monotonic(), read_cpu_seconds()
        item.stash[_BEGAN] = (began, cpu)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Write the cost into the report of the test's teardown."""
        report = yield
        if call.when == "teardown":
            began, cpu = item.stash[_BEGAN]
            worker = os.environ.get("PYTEST_XDIST_WORKER", "")
            cost = Cost(round(read_cpu_seconds() - cpu, 3), round(time.monotonic() - began, 3), worker)
            report.user_properties.append((PROPERTY, asdict(cost)))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take what the report of a teardown carries."""
        for name, value in report.user_properties:
            if name == PROPERTY and report.when == "teardown":
                test, _, _group = report.nodeid.partition("@")
                self.by_test[test] = Cost(**value)  # type: ignore[arg-type]


_BEGAN = pytest.StashKey[tuple[float, float]]()


def read_cpu_seconds() -> float:
    """Return the CPU seconds of this process and of all children that it reaped."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def pytest_addoption(parser: pytest.Parser) -> None:
    """Name the flag."""
    parser.addoption("--costs", metavar="FILE", help="write what each test cost, as JSON")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Measure always: it costs a microsecond a test."""
    config.pluginmanager.register(Costs(), "costs")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the file, where one is asked for and this is no worker."""
    config = session.config
    path = config.getoption("--costs")
    if path and not hasattr(config, "workerinput"):
        costs = config.pluginmanager.getplugin("costs")
        Path(path).write_text(
            json.dumps({test: asdict(cost) for test, cost in costs.by_test.items()}, indent=1)
        )
