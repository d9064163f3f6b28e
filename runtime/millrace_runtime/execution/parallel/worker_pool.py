"""The workers' processes, as the engine sees them: starting, messages, silence, end."""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from millrace_runtime.execution.errors import ModelError, WorkerError
from millrace_runtime.execution.parallel.channel import Channel, ChannelClosed
from millrace_runtime.execution.parallel.heartbeats import Heartbeats, Watch
from millrace_runtime.execution.parallel.messages import Failed, FromWorker, ToWorker, WorkerArguments
from millrace_runtime.protocol.encoding import encode_frame

SILENCE_SECONDS = 5.0
"""A worker without a heartbeat for so long is stopped. It beats ten times a second, whatever it computes."""
END_SECONDS = 2.0
"""How long to wait for a process whose socket is closed: it has ended, or ends soon."""
_MODULE = "millrace_runtime.execution.parallel.worker_process"


@dataclass(slots=True)
class _Member:
    """One worker."""

    process: subprocess.Popen[bytes]
    channel: Channel[FromWorker]


class WorkerPool:
    """All workers of a replica. If one ends, all end, because none can compute alone."""

    def __init__(self, arguments: list[WorkerArguments], environment: Mapping[str, str]) -> None:
        """Start a process for each worker's arguments, and fill in their descriptors."""
        self.count = len(arguments)
        self._heartbeats = Heartbeats.create()
        self._exchange_fd = os.memfd_create("millrace-exchange")
        self._watch: Watch | None = None
        self._members = [self._start(one, environment) for one in arguments]
        self._poll = select.poll()
        for member in self._members:
            self._poll.register(member.channel, select.POLLIN)

    @property
    def progress(self) -> int:
        """A number that changes while a worker makes progress."""
        return self._heartbeats.progress(self.count)

    def watch(self) -> None:
        """Expect a heartbeat of every worker from now on."""
        self._watch = Watch(time.monotonic())

    def broadcast(self, message: ToWorker) -> None:
        """Send a message to every worker. Raises WorkerError."""
        frame = encode_frame(message)
        for index, member in enumerate(self._members):
            try:
                member.channel.send_frame(frame)
            except ChannelClosed:
                raise self._explain_end(index) from None

    def receive(self, timeout_seconds: float) -> Iterator[tuple[int, FromWorker]]:
        """Yield the messages that have come, each with its worker's number. Wait up to a time for the first.

        Raises ModelError if a worker can't load the model, and WorkerError for a worker that failed, ended or
        is stopped.
        """
        if not self._poll.poll(timeout_seconds * 1000):
            self.check_silence()
            return
        for index, member in enumerate(self._members):
            try:
                messages = member.channel.receive(0)
            except ChannelClosed:
                raise self._explain_end(index) from None
            for message in messages:
                if isinstance(message, Failed):
                    raise self._explain(index, message)
                yield index, message

    def check_silence(self) -> None:
        """Raise WorkerError for a worker that is stopped."""
        if self._watch is None:
            return
        now = time.monotonic()
        for index in range(self.count):
            silence = self._watch.measure_silence(self._heartbeats.last_beat(index), now)
            if silence > SILENCE_SECONDS:
                raise WorkerError(f"{self._name(index)} is stopped: no heartbeat for {silence:.0f} s")

    def end(self) -> None:
        """Kill every worker, and wait until all have ended. A second call does nothing."""
        if not self._members:
            return
        for member in self._members:
            member.process.kill()
        for member in self._members:
            member.process.wait()
            member.channel.close()
        self._members = []
        os.close(self._exchange_fd)
        self._heartbeats.close()

    def _start(self, arguments: WorkerArguments, environment: Mapping[str, str]) -> _Member:
        mine, theirs = socket.socketpair()
        fds = {
            "socket_fd": theirs.fileno(),
            "exchange_fd": self._exchange_fd,
            "heartbeats_fd": self._heartbeats.fd,
        }
        arguments = msgspec.structs.replace(arguments, engine_pid=os.getpid(), **fds)
        command = [sys.executable, "-m", _MODULE, msgspec.json.encode(arguments).decode()]
        with theirs:
            process = subprocess.Popen(
                command, pass_fds=tuple(fds.values()), env=environment, stdin=subprocess.DEVNULL
            )
        return _Member(process, Channel(mine, FromWorker))  # type: ignore[arg-type]

    def _explain(self, index: int, failed: Failed) -> Exception:
        """Return the error of a worker's last message. Every worker has the same model and settings."""
        if failed.is_model:
            return ModelError(failed.reason)
        return WorkerError(f"{self._name(index)} failed: {failed.reason}")

    def _explain_end(self, index: int) -> Exception:
        """Return why a worker is gone. Its last message, or that of an earlier one, may still be unread."""
        for other in (index, *(number for number in range(self.count) if number != index)):
            with suppress(ChannelClosed):
                for message in self._members[other].channel.receive(0):
                    if isinstance(message, Failed):
                        return self._explain(other, message)
        with suppress(subprocess.TimeoutExpired):
            self._members[index].process.wait(END_SECONDS)
        return WorkerError(f"{self._name(index)} {_describe_end(self._members[index].process.returncode)}")

    def _name(self, index: int) -> str:
        return f"worker {index} of {self.count}"


def _describe_end(code: int | None) -> str:
    if code is None:
        return "reads no messages"
    if code >= 0:
        return f"ended with exit status {code}"
    hint = "; more memory may be needed" if code == -signal.SIGKILL else ""
    return f"was killed by {signal.Signals(-code).name}{hint}"
