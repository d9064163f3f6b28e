"""Ends a cluster's processes when the process that started them is gone, however it went.

Run as `python -m e2e.cluster.reaper STATE`: it waits for the end of its input, a pipe whose other end
the starter holds. PR_SET_PDEATHSIG would not do: it follows the thread that forked, not the process.
"""

import sys
from pathlib import Path

from e2e.cluster.processes import ProcessTable


def main(state: Path) -> None:
    """Wait for the pipe to close, then end what the state folder records."""
    sys.stdin.buffer.read()
    ProcessTable(state / "pids", state / "logs").stop_all(seconds=5.0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
