"""How far a fetch is, in lines that a pod's log can bear."""

from collections.abc import Callable
from time import monotonic
from typing import Self, TextIO

from millrace_fetch.units import show_bytes, show_seconds

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

    def advance(self, num_bytes: int) -> None:
        """Count, and tell of it now and then."""
        if line := self._meter.advance(num_bytes, self._clock()):
            self.say(line)

    def say(self, text: str) -> None:
        """Write a line."""
        self._stream.write(f"millrace fetch: {text}\n")
        self._stream.flush()
