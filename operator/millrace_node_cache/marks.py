"""When each model was used last: a file of ours for each, whose time says it. It outlives this process.

A model's own folder would not do: whoever writes it could make itself the one that was used last.
"""

import os
from collections.abc import Collection
from pathlib import Path


class Marks:
    """The files of one folder that nobody else writes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def prepare(self) -> None:
        """Make the folder. Raises OSError."""
        self._folder.mkdir(exist_ok=True)

    def note_use(self, name: str, now: float) -> None:
        """Note that a model is used now. Raises OSError."""
        path = self._folder / name
        path.touch()
        os.utime(path, (now, now))

    def read(self, name: str, now: float) -> float:
        """Return when a model was used last. One that nobody knew is used now. Raises OSError."""
        try:
            return (self._folder / name).stat().st_mtime
        except FileNotFoundError:
            self.note_use(name, now)
            return now

    def forget_all_but(self, names: Collection[str]) -> None:
        """Remove the marks of models that are gone. Raises OSError."""
        for path in self._folder.iterdir():
            if path.name not in names:
                path.unlink(missing_ok=True)
