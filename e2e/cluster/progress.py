"""Lines of progress that a person can follow while something takes its time."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Say = Callable[[str], None]
PROGRESS_SECONDS = 10.0


@contextmanager
def progress(name: str, activity: str, log: Path, say: Say, unit: str) -> Iterator[None]:
    """Say every few seconds how long `name` has taken and how many lines its log has, and how it ended.

    `activity` is a word such as building. `unit` says what a line of the log stands for, in the plural.
    """
    began = time.monotonic()
    over = threading.Event()

    def report() -> None:
        while not over.wait(PROGRESS_SECONDS):
            say(f"{name}: {time.monotonic() - began:4.0f} s, {_count_lines(log)} {unit}")

    reporter = threading.Thread(target=report, daemon=True)
    say(f"{name}: {activity} (log: {log})")
    reporter.start()
    try:
        yield
    except BaseException:
        say(f"{name}: failed after {time.monotonic() - began:.0f} s")
        raise
    else:
        say(f"{name}: done in {time.monotonic() - began:.0f} s")
    finally:
        over.set()
        reporter.join()


class Laps:
    """What the parts of something took, one after the other, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = clock
        self._began = clock()

    @property
    def total(self) -> float:
        """Seconds from the beginning to the last part's end."""
        return sum(self.seconds.values())

    def end(self, name: str) -> None:
        """Give the time since the former part's end to this one."""
        self.seconds[name] = self._clock() - self._began - self.total

    def describe(self) -> str:
        """Return all parts with their seconds, in words."""
        return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.seconds.items())


def _count_lines(log: Path) -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0
