"""The processes of a replica: how the supervisor starts, signals and reaps them, and how each one joins."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from millrace_fit.kv_budget import plan_text_memory
from millrace_runtime.execution.host import build_thread_environment, measure_usable_memory, read_num_cpus
from millrace_runtime.process import end_with_parent
from millrace_runtime.replica.heartbeat import Heartbeat, Member
from millrace_runtime.replica.settings import ReplicaSettings

_MODULES = {
    Member.ENGINE: "millrace_runtime.replica.engine_process",
    Member.HTTP: "millrace_runtime.replica.http_process",
}


class Children:
    """The engine and the HTTP process. As a context manager it kills at the end those that still run."""

    def __init__(self, settings: ReplicaSettings, heartbeat: Heartbeat, listener: socket.socket) -> None:
        """Start the processes. `listener` is the bound socket of the HTTP process."""
        engine_end, http_end = socket.socketpair()
        environment = build_thread_environment(os.environ, read_num_cpus(os.environ))
        self._environment = environment
        # Measured before a process has loaded, and passed to each, so that their shares can't overlap.
        self._text_memory_bytes = plan_text_memory(measure_usable_memory(0).num_bytes)
        with engine_end, http_end:
            self._processes = {
                Member.ENGINE: self._start(Member.ENGINE, settings, [engine_end.fileno(), heartbeat.fd]),
                Member.HTTP: self._start(
                    Member.HTTP, settings, [http_end.fileno(), heartbeat.fd, listener.fileno()]
                ),
            }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for member, process in self._processes.items():
            self.send(member, signal.SIGKILL)
            if process.returncode is None:
                process.wait()

    def _start(self, member: Member, settings: ReplicaSettings, fds: list[int]) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            _MODULES[member],
            settings.to_json(),
            str(os.getpid()),
            str(self._text_memory_bytes),
            *map(str, fds),
        ]
        return subprocess.Popen(command, pass_fds=fds, env=self._environment, stdin=subprocess.DEVNULL)

    def send(self, member: Member, signal_number: int) -> None:
        """Send a signal to a process, unless it has been reaped."""
        if self._processes[member].returncode is None:
            os.kill(self._processes[member].pid, signal_number)

    def reap(self) -> Iterator[tuple[Member, int]]:
        """Yield each process that ended, with its exit code (negative: the signal that killed it).

        As process 1 of a container the supervisor also inherits and reaps the processes' orphans.
        """
        members = {process.pid: member for member, process in self._processes.items()}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in members:
                code = os.waitstatus_to_exitcode(status)
                self._processes[members[pid]].returncode = code
                yield members[pid], code


@dataclass(frozen=True)
class Membership:
    """The values that a process gets from the supervisor."""

    settings: ReplicaSettings
    text_memory_bytes: int
    """Memory that the text worker may use."""
    fds: tuple[int, ...]


def join_replica(argv: list[str]) -> Membership:
    """Return the supervisor's arguments, and make sure that this process ends with the supervisor.

    `argv`: settings, the supervisor's process id, the text worker's memory, descriptors.
    Children of this process do not inherit the descriptors: they could keep the port open after its end.
    The supervisor handles signals to the whole group (Ctrl-C in a terminal). SIGTERM is blocked and not
    ignored, so that a SIGTERM during the loading is still there when the process unblocks it.
    """
    settings, supervisor_pid, text_memory, *fds = argv
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    end_with_parent(int(supervisor_pid))
    membership = Membership(ReplicaSettings.from_json(settings), int(text_memory), tuple(map(int, fds)))
    for fd in membership.fds:
        os.set_inheritable(fd, False)
    return membership
