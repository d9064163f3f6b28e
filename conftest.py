"""What holds for every test run, without and with a cluster: nothing of it outlives it."""

from development.leftovers import guard_this_process


def pytest_configure() -> None:
    """Guard the run before anything is started."""
    guard_this_process()
