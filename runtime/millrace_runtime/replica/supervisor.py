"""Process 1 of a replica: starts the others, answers probes, passes signals on, and logs why it ended.

Standard library only, so that it starts in milliseconds and never waits for a tokenizer or a GPU.
"""

import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterator

from millrace_runtime import contract
from millrace_runtime.listener import describe_failure, local_url, open_listener
from millrace_runtime.process import say
from millrace_runtime.replica.errors import PortTaken
from millrace_runtime.replica.heartbeat import Deadlines, Heartbeat, Member, Phase
from millrace_runtime.replica.lifecycle import Action, Ending, Lifecycle, Stage
from millrace_runtime.replica.probe_server import ProbeServer
from millrace_runtime.replica.processes import Children
from millrace_runtime.replica.settings import ReplicaSettings

_START_POLL_SECONDS = 0.1
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def supervise(settings: ReplicaSettings) -> int:
    """Run a replica until it ends, and return its exit status. Raises PortTaken.

    The last line of the log says why it ended. The operator shows it to the user.
    """
    with contextlib.closing(Heartbeat.create(time.monotonic())) as heartbeat:
        ending = _run_replica(settings, heartbeat)
        failure = heartbeat.read_failure()
    say("stopped" if ending.status == 0 else failure or ending.cause or "stopped")
    return ending.status


def _run_replica(settings: ReplicaSettings, heartbeat: Heartbeat) -> Ending:
    """Keep the ports, the liveness server and the processes until the replica has ended."""
    deadlines = Deadlines(settings.startup_deadline_seconds, settings.step_deadline_seconds)
    with (
        _bind(settings.host, settings.port, "--port") as listener,
        _bind(settings.host, settings.live_port, "--live-port") as live_listener,
        ProbeServer(
            live_listener,
            {
                contract.PATH_LIVE: lambda: heartbeat.find_fault(deadlines, time.monotonic()),
                contract.PATH_READY: lambda: heartbeat.find_unready(deadlines, time.monotonic()),
            },
        ),
        _signals() as next_signals,
    ):
        say(f"liveness at {local_url(live_listener)}{contract.PATH_LIVE}")
        say(f"loading {settings.served_name} from {settings.model_path}")
        address = local_url(listener)
        with Children(settings, heartbeat, listener) as children:
            return _Supervisor(settings, heartbeat, children, address, next_signals).run()


class _Supervisor:
    """Waits for a signal, an exit or a deadline, and does what the lifecycle decides."""

    def __init__(
        self,
        settings: ReplicaSettings,
        heartbeat: Heartbeat,
        children: Children,
        address: str,
        next_signals: Callable[[float | None], list[int]],
    ) -> None:
        """`address` is the API's URL, for the log."""
        self._settings = settings
        self._heartbeat = heartbeat
        self._children = children
        self._address = address
        self._next_signals = next_signals
        self._started = time.monotonic()
        self._is_announced = False
        self._lifecycle = Lifecycle(settings.drain_seconds)

    def run(self) -> Ending:
        """Return why the replica ended, once every process has ended."""
        while self._lifecycle.stage is not Stage.DONE:
            for signal_number in self._next_signals(self._timeout()):
                self._handle_signal(signal_number)
            self._act(self._lifecycle.expire(time.monotonic()))
            self._announce_ready()
        assert self._lifecycle.ending is not None
        return self._lifecycle.ending

    def _handle_signal(self, signal_number: int) -> None:
        if signal_number in _STOP_SIGNALS:
            if self._lifecycle.stage is Stage.SERVING:
                say("stopping: streams in flight finish, new requests are refused")
            self._act(self._lifecycle.ask_to_stop(signal_number, time.monotonic()))
        elif signal_number == signal.SIGCHLD:
            for member, code in self._children.reap():
                self._act(self._lifecycle.lose(member, code, time.monotonic()))

    def _act(self, actions: tuple[Action, ...]) -> None:
        for action in actions:
            match action:
                case Action.DRAIN_HTTP:
                    self._children.send(Member.HTTP, signal.SIGTERM)
                case Action.KILL_HTTP:
                    self._children.send(Member.HTTP, signal.SIGKILL)
                case Action.KILL_ENGINE:
                    self._children.send(Member.ENGINE, signal.SIGKILL)

    def _timeout(self) -> float | None:
        """Return the seconds until the loop must act again; None while a ready replica serves."""
        if self._lifecycle.deadline is not None:
            return max(0.0, self._lifecycle.deadline - time.monotonic())
        return None if self._is_announced else _START_POLL_SECONDS

    def _announce_ready(self) -> None:
        is_ready = all(self._heartbeat.read(member).phase is Phase.STEPPING for member in Member)
        if self._is_announced or not is_ready or self._lifecycle.stage is not Stage.SERVING:
            return
        self._is_announced = True
        seconds = time.monotonic() - self._started
        say(f"ready after {seconds:.1f} s: {self._settings.served_name} at {self._address}/v1")
        if self._settings.is_demo:
            say(f"try: {_render_example(self._address, self._settings.served_name)}")


def _render_example(address: str, model: str) -> str:
    body = (
        f'{{"model": "{model}", "stream": true, "max_tokens": 120, '
        '"messages": [{"role": "user", "content": "Tell me a story about a fox."}]}'
    )
    return f"curl -N {address}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'"


def _bind(host: str, port: int, flag: str) -> socket.socket:
    """Return a listening socket. Raises PortTaken, whose text says what to do."""
    try:
        return open_listener(host, port)
    except OSError as error:
        raise PortTaken(describe_failure(error, host, port, port_flag=flag)) from error


@contextlib.contextmanager
def _signals() -> Iterator[Callable[[float | None], list[int]]]:
    """Catch our signals, and yield a function that waits up to a timeout and returns the next ones."""
    read_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    caught = (*_STOP_SIGNALS, signal.SIGCHLD)
    former = {number: signal.signal(number, lambda *_: None) for number in caught}
    former_fd = signal.set_wakeup_fd(write_fd)
    with selectors.DefaultSelector() as selector:
        selector.register(read_fd, selectors.EVENT_READ)

        def wait(timeout: float | None) -> list[int]:
            return list(os.read(read_fd, 1024)) if selector.select(timeout) else []

        try:
            yield wait
        finally:
            signal.set_wakeup_fd(former_fd)
            for number, handler in former.items():
                signal.signal(number, handler)
            os.close(read_fd)
            os.close(write_fd)
