"""The progress of a fetch as a bar on a terminal. A pod has no terminal, and does not load this."""

from contextlib import ExitStack
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


class Bar:
    """Progress as a bar, for a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream, highlight=False)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=self._console)
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
        """Show the bar, as a new task: the total of a task can't become unknown again."""
        self._progress.remove_task(self._task)
        self._task = self._progress.add_task("fetching", total=total_bytes, completed=done_bytes)

    def advance(self, num_bytes: int) -> None:
        """Move the bar."""
        self._progress.advance(self._task, num_bytes)

    def say(self, text: str) -> None:
        """Write a line above the bar."""
        self._console.print(f"millrace fetch: {text}", markup=False, soft_wrap=True)
