"""What every process of a replica does first: read its arguments and end with the supervisor."""

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
    """Memory that the text worker may use."""
    fds: tuple[int, ...]


def join_replica(argv: list[str]) -> Membership:
    """Return what the supervisor handed over, and make sure that this process ends with it.

    `argv`: settings, the supervisor's process id, the text worker's memory, descriptors.
    Processes that we start do not inherit the descriptors: they could hold the port open after our end.
    Signals for the whole group (Ctrl-C in a terminal) are handled by the supervisor. SIGTERM is blocked and
    not ignored, so that one which comes while a process loads is there when it is unblocked.
    """
    settings, supervisor_pid, text_memory, *fds = argv
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    end_with_parent(int(supervisor_pid))
    membership = Membership(ReplicaSettings.from_json(settings), int(text_memory), tuple(map(int, fds)))
    for fd in membership.fds:
        os.set_inheritable(fd, False)
    return membership
