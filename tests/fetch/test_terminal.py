"""The real command on a terminal: what a person sees while a model comes, and after Ctrl-C."""

import asyncio
import io
import os
import pty
import signal
import termios
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Iterator
from contextlib import suppress

import pytest
from aiohttp import web

from millrace_fetch.cli.terminal_bar import Bar
from testing.model_sources.processes import MILLRACE, until
from testing.model_sources.servers import FakeHub, once
from tests.fetch.conftest import Fetcher, make_model

TOKEN = "hf_secret"
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
"""What hides a terminal's cursor, and shows it."""


class Terminal:
    """A terminal, and all that was written on it."""

    def __init__(self) -> None:
        self._master, self.end = pty.openpty()
        self._written = b""
        self._before = termios.tcgetattr(self.end)
        os.set_blocking(self._master, False)

    @property
    def text(self) -> str:
        with suppress(BlockingIOError):
            while data := os.read(self._master, 1 << 16):
                self._written += data
        return self._written.decode()

    def is_as_before(self) -> bool:
        """Whether it echoes and breaks lines as it did."""
        return termios.tcgetattr(self.end) == self._before

    def close(self) -> None:
        os.close(self._master)
        os.close(self.end)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()


async def start(hub: FakeHub, fetcher: Fetcher, terminal: Terminal) -> Process:
    settings = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(fetcher.folder.parent), "HF_TOKEN": TOKEN}
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    return await asyncio.create_subprocess_exec(
        *(str(MILLRACE), "fetch", "hf://org/m", "--to", str(fetcher.folder)),
        env=environment | settings | {"TERM": "xterm-256color", "COLUMNS": "120"},
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=terminal.end,
        preexec_fn=listen,
    )


def listen() -> None:
    """Have the command interrupted as a person does it, also where a shell in the background ignores that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Screen(io.StringIO):
    """Keeps what is drawn on a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_bar_of_a_model_whose_size_is_not_known_has_no_percents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    screen = Screen()
    with Bar(screen) as bar:
        bar.begin(1_000_000, 500_000)
        bar.begin(None, 5_000_000)
        bar.advance(2_000_000)
    last = screen.getvalue().rpartition("fetching")[2]
    assert "7.0/? MB" in last
    assert "%" not in last


async def test_a_person_sees_a_bar_and_has_the_terminal_back_after_an_interrupt(
    fetcher: Fetcher, terminal: Terminal
) -> None:
    async with FakeHub(make_model(4 << 20)) as hub:
        hub.token = TOKEN
        hub.large.bytes_per_second = 1e6
        hub.large.faults.append(once(lambda: web.Response(status=503)))
        process = await start(hub, fetcher, terminal)
        await until(lambda: "MB/s" in terminal.text and "retrying in" in terminal.text)
        assert HIDE in terminal.text
        process.send_signal(signal.SIGINT)
        status = await process.wait()
    assert status == 130
    text = terminal.text
    for part in ("fetching", "━", "/8.4 MB", "answered 503; retrying in"):
        assert part in text
    assert "secret" not in text
    stopped = "millrace fetch: stopped; the next run continues from here"
    assert text.endswith(f"\r\n{SHOW}{stopped}\r\n")
    assert terminal.is_as_before()
