"""What can go wrong with the local cluster.

ClusterError
├── PrecheckFailedError   this machine lacks something; the text says what to do
├── BuildFailedError      a part could not be had; names the part, the cause and the log
└── PartFailedError       a part did not start, died or answers wrongly; names it and its log
"""

from pathlib import Path


class ClusterError(Exception):
    """Any failure of the local cluster; its text is one line for the person at the terminal."""


class PrecheckFailedError(ClusterError):
    """The machine lacks something that the cluster needs."""


class BuildFailedError(ClusterError):
    """A part could neither be found nor built."""

    def __init__(self, part: str, cause: str, log: Path) -> None:
        super().__init__(f"{part}: {cause} (log: {log})")
        self.part = part


class PartFailedError(ClusterError):
    """A part of the cluster did not start, died, or does not answer."""

    def __init__(self, part: str, cause: str, log: Path | None = None) -> None:
        super().__init__(f"{part}: {cause}" + (f" (log: {log})" if log else ""))
        self.part = part
