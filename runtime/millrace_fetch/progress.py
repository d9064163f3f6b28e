"""How far a fetch is: a bar on a terminal, else lines that a pod's log can bear."""

from collections.abc import Callable
from contextlib import ExitStack
from time import monotonic
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from millrace_fetch.words import show_bytes, show_seconds

_LINE_PERCENT = 10
_LINE_SECONDS = 30.0
_LEAST_SECONDS = 1.0
"""Between two lines: a small model comes in less than the time it takes to read of it."""


class Meter:
    """Decides when a line is due, and what it says. Pure: the time is given."""

    def __init__(self, total_bytes: int | None, done_bytes: int, now: float) -> None:
        self._total = total_bytes
        self._first = self._done = done_bytes
        self._began = self._told_at = now
        self._told_percent = self._percent

    @property
    def total_bytes(self) -> int | None:
        """The size of all files. None where it is not known: then there are no percents."""
        return self._total

    @property
    def done_bytes(self) -> int:
        """What of it is there."""
        return self._done

    @property
    def _percent(self) -> int:
        if self._total is None:
            return 0
        return min(100, 100 * self._done // self._total) if self._total else 100

    def advance(self, num_bytes: int, now: float) -> str | None:
        """Count bytes. Return a line every 10 % and every 30 s, else None."""
        self._done += num_bytes
        is_step = self._percent // _LINE_PERCENT > self._told_percent // _LINE_PERCENT
        if now - self._told_at < (_LEAST_SECONDS if is_step else _LINE_SECONDS):
            return None
        self._told_percent, self._told_at = self._percent, now
        return self._describe(now)

    def _describe(self, now: float) -> str:
        rate = (self._done - self._first) / max(now - self._began, 1e-3)
        if self._total is None:
            return f"{show_bytes(self._done)}, {show_bytes(rate)}/s"
        line = (
            f"{self._percent} %, {show_bytes(self._done)} of {show_bytes(self._total)}, {show_bytes(rate)}/s"
        )
        left = self._total - self._done
        return line if left <= 0 or rate <= 0 else f"{line}, {show_seconds(left / rate)} left"


class Lines:
    """Progress in lines."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._meter = Meter(0, 0, clock())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """A line is written at once: nothing is left to do."""

    def begin(self, total_bytes: int | None, done_bytes: int) -> None:
        """Say how much is to come."""
        self._meter = Meter(total_bytes, done_bytes, self._clock())
        there = f", {show_bytes(done_bytes)} of them are there" if done_bytes else ""
        size = "files whose sizes are not all known" if total_bytes is None else show_bytes(total_bytes)
        self.say(f"fetching {size}{there}")

    def follow(self, total_bytes: int | None, done_bytes: int) -> None:
        """Count what the other fetch brings, and tell of it now and then."""
        if total_bytes != self._meter.total_bytes or done_bytes < self._meter.done_bytes:
            self._meter = Meter(total_bytes, done_bytes, self._clock())
        line = self._meter.advance(done_bytes - self._meter.done_bytes, self._clock())
        if line:
            self.say(f"the other fetch has {line}")

    def advance(self, num_bytes: int) -> None:
        """Count, and tell of it now and then."""
        if line := self._meter.advance(num_bytes, self._clock()):
            self.say(line)

    def say(self, text: str, quiet_seconds: float = 0.0) -> None:  # noqa: ARG002  it is in the text
        """Write a line."""
        self._stream.write(f"millrace fetch: {text}\n")
        self._stream.flush()


class Bar:
    """Progress as a bar, for a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream, highlight=False)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._exits = ExitStack()
        self._task = self._progress.add_task("looking", total=None, visible=False)

    def __enter__(self) -> Self:
        self._exits.enter_context(self._progress)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exits.__exit__(kind, error, trace)

    def begin(self, total_bytes: int | None, done_bytes: int) -> None:
        """Show the bar."""
        self._show("fetching", total_bytes, done_bytes)

    def follow(self, total_bytes: int | None, done_bytes: int) -> None:
        """Show the bar of the other fetch."""
        (shown,) = self._progress.tasks
        if (shown.description, shown.total) == ("waiting", total_bytes):
            self._progress.update(self._task, completed=done_bytes)
        else:
            self._show("waiting", total_bytes, done_bytes)

    def _show(self, description: str, total_bytes: int | None, done_bytes: int) -> None:
        """Show another task: one that has a total can't lose it."""
        self._progress.remove_task(self._task)
        self._task = self._progress.add_task(description, total=total_bytes, completed=done_bytes)

    def advance(self, num_bytes: int) -> None:
        """Move the bar."""
        self._progress.advance(self._task, num_bytes)

    def say(self, text: str, quiet_seconds: float = 0.0) -> None:  # noqa: ARG002  it is in the text
        """Write a line above the bar."""
        self._console.print(f"millrace fetch: {text}", markup=False, soft_wrap=True)
