"""/livez beside clients that dawdle."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from millrace_runtime.listener import BACKLOG
from millrace_runtime.replica import probe_server
from millrace_runtime.replica.probe_server import ProbeServer

PROBE = b"GET /livez HTTP/1.1\r\n\r\n"


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    listener = socket.create_server(("127.0.0.1", 0))
    with ProbeServer(listener, {"/livez": lambda: None}):
        yield listener.getsockname()[:2]


def ask(address: tuple[str, int], request: bytes = PROBE) -> bytes:
    with send(address, request) as client:
        return read_all(client)


def send(address: tuple[str, int], request: bytes) -> socket.socket:
    client = socket.create_connection(address, timeout=10)
    client.sendall(request)
    return client


def read_all(client: socket.socket) -> bytes:
    return b"".join(iter(lambda: client.recv(4096), b""))


def dawdle(address: tuple[str, int]) -> socket.socket:
    return send(address, b"GET /livez HTTP/1.1\r\n")


def is_cut(client: socket.socket) -> bool:
    client.settimeout(1)
    try:
        return not client.recv(1)
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


def seconds_until_cut(client: socket.socket) -> float:
    """Send a byte now and then, so that no single read takes long."""
    began = time.monotonic()
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        while time.monotonic() < began + 10:
            client.sendall(b"X")
            time.sleep(0.1)
    return time.monotonic() - began


def test_many_who_dawdle_hold_no_threads_and_keep_no_probe_out(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(probe_server, "MAX_WAITING", 16)
    num_threads = threading.active_count()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(dawdle(address)) for _ in range(100)]
        assert ask(address).startswith(b"HTTP/1.1 200 OK\r\n")
        assert threading.active_count() <= num_threads  # those of earlier tests may end meanwhile
        assert all(map(is_cut, clients[: 100 - 16]))
        assert not is_cut(clients[-1])
    assert not caplog.records


def test_probes_that_come_at_once_are_all_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the first is asked for, more come than may wait for a request. They are not idle."""
    monkeypatch.setattr(probe_server, "MAX_WAITING", 250)
    listener, is_asked, may_answer = (
        socket.create_server(("127.0.0.1", 0)),
        threading.Event(),
        threading.Event(),
    )

    def find_stall() -> None:
        is_asked.set()
        assert may_answer.wait(10)

    with ProbeServer(listener, {"/livez": find_stall}), contextlib.ExitStack() as stack:
        address = listener.getsockname()[:2]
        stack.callback(may_answer.set)
        clients = [stack.enter_context(send(address, PROBE))]
        assert is_asked.wait(10)
        clients += [stack.enter_context(send(address, PROBE)) for _ in range(300)]
        may_answer.set()
        assert all(read_all(client).startswith(b"HTTP/1.1 200 OK\r\n") for client in clients)


class RecordingListener(socket.socket):
    """Remembers how many connections may wait to be accepted."""

    backlog = 0

    def listen(self, backlog: int = 0, /) -> None:
        self.backlog = backlog
        super().listen(backlog)


def test_as_many_may_wait_to_be_accepted_as_at_every_port_of_ours() -> None:
    listener = RecordingListener()
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    with ProbeServer(listener, {"/livez": lambda: None}):
        assert ask(listener.getsockname()).startswith(b"HTTP/1.1 200 OK\r\n")
    assert listener.backlog == BACKLOG


def test_the_end_cuts_who_is_still_there_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()[:2]
    with contextlib.ExitStack() as stack:
        with ProbeServer(listener, {"/livez": lambda: None}):
            clients = [stack.enter_context(dawdle(address)) for _ in range(5)]
            assert ask(address).startswith(b"HTTP/1.1 200 OK\r\n")
        assert all(map(is_cut, clients))
    assert not caplog.records


def test_a_whole_request_has_a_deadline(address: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_server, "REQUEST_SECONDS", 0.5)
    with dawdle(address) as client:
        assert 0.3 < seconds_until_cut(client) < 5


@pytest.mark.parametrize("request_", [b"POST /livez HTTP/1.1\r\n\r\n", b"\r\n\r\n", b"GET\r\n\r\n"])
def test_what_is_no_probe_is_answered_too(address: tuple[str, int], request_: bytes) -> None:
    assert ask(address, request_).startswith(b"HTTP/1.1 404 Not Found\r\n")


def test_a_head_without_end_is_cut(address: tuple[str, int]) -> None:
    with contextlib.suppress(ConnectionResetError):
        assert ask(address, b"GET /livez HTTP/1.1\r\n" + b"X" * 100_000) == b""
