"""What holds for every test run, without and with a cluster: nothing outlives it, and it asks no proxy."""

import gc
from collections.abc import Iterator

import pytest

from development.leftovers import guard_this_process
from development.proxies import NAMES, drop_proxies

pytest_plugins = ["testing.costs", "testing.passed", "testing.budget", "testing.hangs"]
DEAD_PROXY = "http://127.0.0.1:1"


def pytest_configure() -> None:
    """Before anything is started."""
    drop_proxies()
    guard_this_process()


def pytest_collection_finish() -> None:
    """Spare the garbage collector what stays until the end.

    Measured by hand: 970,000 objects, and half a second for each full pass over them.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let the interpreter free them at its end; extensions report what is left as leaks."""
    gc.unfreeze()


@pytest.fixture
def dead_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name a proxy that nobody listens at, for all addresses, as a platform may do in each pod."""
    for name in NAMES:
        monkeypatch.setenv(name, "" if name.lower() == "no_proxy" else DEAD_PROXY)


@pytest.fixture
def thawed() -> Iterator[None]:
    """Let the collector look again through what a test froze."""
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()
