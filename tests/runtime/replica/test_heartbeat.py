import os
import signal
import socket
import time
import urllib.error
import urllib.request

import pytest

from millrace_runtime.replica.heartbeat import Beat, Deadlines, Heartbeat, Member, Phase
from millrace_runtime.replica.probe_server import ProbeServer

DEADLINES = Deadlines(startup=100, step=10)


def test_another_mapping_of_the_page_sees_each_beat() -> None:
    ours = Heartbeat.create(5.0)
    theirs = Heartbeat(os.dup(ours.fd))
    assert theirs.read(Member.HTTP) == Beat(Phase.LOADING, 5.0)
    theirs.beat(Member.ENGINE, Phase.STEPPING, 7.5)
    assert ours.read(Member.ENGINE) == Beat(Phase.STEPPING, 7.5)
    assert ours.read(Member.HTTP) == Beat(Phase.LOADING, 5.0)
    theirs.close()
    ours.close()


def test_no_reader_ever_sees_half_a_beat() -> None:
    """One process writes without pause while the other reads: every beat read is one that was written."""
    ours = Heartbeat.create(1.0)
    reader = os.getpid()
    writer = os.fork()
    if writer == 0:
        while os.getppid() == reader:
            for at in (1.0, 2.0, 3.0):
                ours.beat(Member.ENGINE, Phase.STEPPING if at > 1 else Phase.LOADING, at)
        os._exit(0)
    try:
        seen = {ours.read(Member.ENGINE) for _ in range(200_000)}
        until = time.monotonic() + 10
        while len(seen) == 1 and time.monotonic() < until:  # the writer has not had a core yet
            seen |= {ours.read(Member.ENGINE) for _ in range(200_000)}
    finally:
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
    assert len(seen) > 1
    assert seen <= {Beat(Phase.LOADING, 1.0), Beat(Phase.STEPPING, 2.0), Beat(Phase.STEPPING, 3.0)}
    ours.close()


def test_each_phase_has_its_deadline_and_the_stall_names_who_and_where() -> None:
    heartbeat = Heartbeat.create(0.0)
    assert heartbeat.find_stall(DEADLINES, 99) is None
    assert "engine: no progress for 101 s while loading" in str(heartbeat.find_stall(DEADLINES, 101))
    heartbeat.beat(Member.ENGINE, Phase.STEPPING, 50)
    assert heartbeat.find_stall(DEADLINES, 60) is None
    stall = heartbeat.find_stall(DEADLINES, 61)
    assert stall == "engine: no progress for 11 s while stepping; the deadline is 10 s"
    heartbeat.beat(Member.ENGINE, Phase.STEPPING, 101)
    assert str(heartbeat.find_stall(DEADLINES, 102)).startswith("http: ")
    heartbeat.close()


def test_last_words_are_one_line_and_bounded() -> None:
    heartbeat = Heartbeat.create(0.0)
    assert heartbeat.read_failure() is None
    heartbeat.write_failure("no model\n  here: é")
    assert heartbeat.read_failure() == "no model here: é"
    heartbeat.write_failure("é" * 5000)
    assert heartbeat.read_failure() == "é" * 1024
    heartbeat.close()


@pytest.mark.parametrize(
    ("path", "stall", "status", "body"),
    [
        ("/livez", None, 200, "ok\n"),
        ("/livez?verbose", None, 200, "ok\n"),
        ("/livez", "engine: stuck", 503, "engine: stuck\n"),
        ("/readyz", None, 503, "it drains\n"),
        ("/other", None, 404, "here is only GET /livez or /readyz\n"),
    ],
)
def test_livez_answers_what_the_heartbeat_says(path: str, stall: str | None, status: int, body: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with ProbeServer(listener, {"/livez": lambda: stall, "/readyz": lambda: "it drains"}):
        try:
            response = opener.open(f"http://127.0.0.1:{listener.getsockname()[1]}{path}", timeout=5)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            assert (response.status, response.read().decode()) == (status, body)


def test_last_words_come_before_a_stall() -> None:
    heartbeat = Heartbeat.create(0.0)
    assert heartbeat.find_fault(DEADLINES, 99) is None
    assert "no progress" in str(heartbeat.find_fault(DEADLINES, 101))
    heartbeat.write_failure("worker 1 of 2 is stopped")
    assert heartbeat.find_fault(DEADLINES, 99) == "worker 1 of 2 is stopped"
    heartbeat.close()
