"""What every process of a replica does first: learn its place and tie its life to the supervisor's."""

import os
import signal
from dataclasses import dataclass

from millrace_runtime.parent import end_with_parent
from millrace_runtime.replica.settings import ReplicaSettings


@dataclass(frozen=True)
class Membership:
    """What the supervisor handed to a process."""

    settings: ReplicaSettings
    text_memory_bytes: int
    """What the text worker may take."""
    fds: tuple[int, ...]


def join_replica(argv: list[str]) -> Membership:
    """Return what the supervisor handed over, and make sure that this process does not outlive it.

    `argv`: settings, the supervisor's process id, the text worker's memory, descriptors.
    What it handed over is ours alone: a process that we start would else hold the port open after our end.
    Signals for the whole group (Ctrl-C in a terminal) are the supervisor's to heed. SIGTERM is kept back
    and not ignored, so that a process which drains finds one that came while it was loading.
    """
    settings, supervisor_pid, text_memory, *fds = argv
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    end_with_parent(int(supervisor_pid))
    membership = Membership(ReplicaSettings.from_json(settings), int(text_memory), tuple(map(int, fds)))
    for fd in membership.fds:
        os.set_inheritable(fd, False)
    return membership
