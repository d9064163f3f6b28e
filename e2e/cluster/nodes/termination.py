"""What a container has to say at its end: a file of the host, mounted where the container finds it."""

from pathlib import Path
from typing import Any

from e2e.cluster.nodes.sandbox import Mount

Object = dict[str, Any]
MAX_BYTES = 4096
"""Of the message, as with the kubelet."""


class TerminationMessage:
    """The file of one container's run."""

    def __init__(self, container: Object, path: Path) -> None:
        self._target = container.get("terminationMessagePath", "/dev/termination-log")
        self._path = path

    def prepare(self) -> Mount:
        """Empty the file, and return where the container sees it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_bytes(b"")
        self._path.chmod(0o666)
        return Mount(self._target, str(self._path))

    def read(self) -> str:
        """Return what the container has written."""
        try:
            with self._path.open("rb") as file:
                return file.read(MAX_BYTES).decode(errors="replace")
        except OSError:
            return ""
