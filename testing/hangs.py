"""A test that hangs ends the run, and says what it waits for.

The process that leads the workers sees when one has ended no test for too long. The worker then prints what
its asyncio tasks wait for and the stacks of its threads, and aborts; pytest-xdist names the test as failed.
Nothing runs in the workers for it: a thread there would be one more at each fork of a test.
"""

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, TextIO

import pytest

LOOK_SECONDS = 1.0
SAY_SECONDS = 2.0
"""That a worker has for its tasks' stacks before its end."""


class Watchdog:
    """Ends workers that end no test for `limit_seconds`; a pytest plugin of the process that leads them."""

    def __init__(self, limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds
        self._pids: dict[str, int] = {}
        self._last_test: dict[int, float] = {}
        """When a worker ended a test last, by process id."""
        self._has_ended_one = False
        self._over = threading.Event()

    def pytest_sessionstart(self) -> None:
        """Look from now on."""
        threading.Thread(target=self._watch, name="hangs", daemon=True).start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Look no more. A worker that hung behind its last test has failed the run, too."""
        self._over.set()
        if self._has_ended_one and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_xdist_newgateway(self, gateway: Any) -> None:
        """A worker process is there, and collects its tests."""
        pid = self._pids[gateway.id] = gateway._rinfo().pid
        self._last_test[pid] = time.monotonic()

    def pytest_xdist_node_collection_finished(self, node: Any) -> None:
        """Count from here: the worker runs its first test next."""
        self._last_test[self._pids[node.gateway.id]] = time.monotonic()

    def pytest_runtest_logreport(self, report: Any) -> None:
        """A worker has ended a phase of a test."""
        pid = self._pids.get(report.node.gateway.id) if hasattr(report, "node") else None
        if pid in self._last_test:
            self._last_test[pid] = time.monotonic()

    def pytest_testnodedown(self, node: Any) -> None:
        """A worker has no test left, or has died."""
        self._last_test.pop(self._pids[node.gateway.id], None)

    def _watch(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            for pid, moment in list(self._last_test.items()):
                if time.monotonic() - moment >= self._limit_seconds:
                    self._last_test.pop(pid, None)
                    self._has_ended_one = True
                    end_worker(pid)


def end_worker(pid: int) -> None:
    """Let a worker print what it waits for, then abort it: pytest's fault handler prints the threads."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGUSR1)
        time.sleep(SAY_SECONDS)
        os.kill(pid, signal.SIGABRT)


def write_tasks(file: TextIO) -> None:
    """Write what each asyncio task of this process waits for."""
    for task in [one for one in gc.get_objects() if issubclass(type(one), asyncio.Task)]:
        if not task.done():
            places = " > ".join(list_places(task.get_coro()))
            print(f"{task.get_name()}, cancelled {task.cancelling()} times: {places}", file=file, flush=True)


def list_places(awaited: Any) -> Iterator[str]:
    """Name the functions and lines that a coroutine stands in, outermost first, then what it awaits."""
    while (frame := getattr(awaited, "cr_frame", None)) is not None:
        yield f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"
        awaited = awaited.cr_await
    yield repr(awaited)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Name the flag."""
    parser.addoption(
        "--hang-seconds", type=float, default=0.0, help="end a worker that ends no test for so long"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Watch the workers, and let each say what it waits for."""
    limit = config.getoption("hang_seconds")
    if not limit:
        return
    if hasattr(config, "workerinput"):
        # pytest captures this file from the first test on, as it was here.
        file = os.fdopen(os.dup(sys.stderr.fileno()), "w")
        signal.signal(signal.SIGUSR1, lambda _signal, _frame: write_tasks(file))
    elif config.getoption("dist", "no") != "no":
        config.pluginmanager.register(Watchdog(limit), "hangs")
