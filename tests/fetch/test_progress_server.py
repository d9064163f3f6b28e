"""What a fetch tells over HTTP of itself."""

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest

from millrace_fetch.cli.command import main
from millrace_fetch.cli.progress_output import Tally, serving
from millrace_fetch.fetch import fetch
from millrace_operator.controller.fetch_progress import read_answer
from millrace_runtime.contract import PATH_PROGRESS
from testing.model_sources.processes import finish
from testing.model_sources.servers import FakeHub, WebFolderServer
from tests.fetch.conftest import NEEDED, Fetcher, Witness, make_model
from tests.fetch.test_command import start


async def ask(port: int) -> dict[str, int]:
    url = f"http://127.0.0.1:{port}{PATH_PROGRESS}"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        found: dict[str, int] = await response.json()
        return found


async def test_it_tells_the_counts_and_the_rate_since_its_beginning() -> None:
    times = iter([10.0, 14.0])
    witness = Witness()
    tally = Tally(witness, lambda: next(times))
    async with serving(tally, "127.0.0.1", 0) as port:
        assert await ask(port) == {}, "the size is not known yet"
        tally.begin(1000, 200)
        tally.advance(400)
        assert await ask(port) == {"totalBytes": 1000, "doneBytes": 600, "bytesPerSecond": 100}
    assert (witness.total, witness.done) == (1000, 600)


async def test_of_a_model_whose_size_is_not_known_the_bytes_are_told() -> None:
    times = iter([10.0, 14.0])
    tally = Tally(Witness(), lambda: next(times))
    tally.begin(None, 200)
    tally.advance(400)
    assert tally.render() == {"doneBytes": 600, "bytesPerSecond": 100}


async def test_a_web_server_that_tells_no_sizes_never_seems_to_be_done(fetcher: Fetcher) -> None:
    told: list[bytes] = []

    class Told(Tally):
        def advance(self, num_bytes: int) -> None:
            super().advance(num_bytes)
            told.append(json.dumps(self.render()).encode())

    async with WebFolderServer(make_model()) as server:
        server.files.has_lengths = False
        order = fetcher.order(server.uri)
        await fetch(order, fetcher.open_source(order), Told(Witness()))
    answers = [read_answer(text) for text in told]
    assert all(answer is not None and answer.percent is None for answer in answers)
    sizes = [len(content) for name, content in make_model().items() if name in NEEDED]
    assert json.loads(told[-1])["doneBytes"] == sum(sizes)


async def test_a_fetch_can_be_asked_how_far_it_is(fetcher: Fetcher, free_port: int) -> None:
    async with FakeHub(make_model(4 << 20)) as hub:
        hub.large.bytes_per_second = 4e6
        process = await start(hub, fetcher.folder, "--progress-port", str(free_port))
        seen: list[dict[str, int]] = []
        while process.returncode is None and not (seen and seen[-1].get("doneBytes")):
            try:
                seen.append(await ask(free_port))
            except aiohttp.ClientError:
                await asyncio.sleep(0.05)
        hub.large.bytes_per_second = None
        status, _, err = await finish(process)
    assert status == 0, err
    assert 0 < seen[-1]["doneBytes"] <= seen[-1]["totalBytes"]


async def test_a_port_that_is_taken_keeps_no_model_away(hub: FakeHub, fetcher: Fetcher) -> None:
    async with serving(Tally(Witness()), "", 0) as port:
        status, _, err = await finish(await start(hub, fetcher.folder, "--progress-port", str(port)))
    assert status == 0
    assert f"no progress at port {port}" in err
    fetcher.check(hub.files.contents)


def test_a_port_is_a_number(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["hf://org/m", "--to", str(tmp_path), "--progress-port", "x"])
