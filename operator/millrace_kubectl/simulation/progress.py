"""How far the simulations are: one line on a terminal, which is gone when they are done."""

from dataclasses import dataclass
from typing import TextIO

CELLS = 30
CLEAR = "\r\x1b[K"


@dataclass
class Progress:
    """A bar over all simulations. It writes nothing where the stream is no terminal."""

    stream: TextIO
    total: int
    """Simulations."""
    seconds: float
    """Of each, in virtual time."""
    num_done: int = 0
    label: str = ""
    _shown: int = -1

    def begin(self, label: str) -> None:
        """Say which one comes now."""
        self.label, self._shown = label, -1
        self._show(0.0)

    def end(self) -> None:
        """Count it as done, and clear the line after the last."""
        self.num_done += 1
        if self.num_done == self.total:
            self.close()

    def close(self) -> None:
        """Clear the line."""
        if self.stream.isatty():
            self.stream.write(CLEAR)
            self.stream.flush()

    def follow(self, at: float) -> None:
        """Show how far the virtual time is, in seconds."""
        self._show(at / self.seconds)

    def _show(self, share: float) -> None:
        percent = int(100 * (self.num_done + min(share, 1.0)) / self.total)
        if percent == self._shown or not self.stream.isatty():
            return
        self._shown = percent
        bar = ("#" * (percent * CELLS // 100)).ljust(CELLS, ".")
        self.stream.write(f"{CLEAR}[{bar}] {percent:3d} %  {self.num_done + 1}/{self.total} {self.label}")
        self.stream.flush()
