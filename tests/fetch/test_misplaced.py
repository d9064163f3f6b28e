"""Parts of a file that begin elsewhere than was asked: a cache on the way that takes one for another."""

from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from millrace_fetch.errors import UnavailableError
from millrace_fetch.plan.manifest import RemoteFile
from millrace_fetch.plan.uri import parse_uri
from millrace_fetch.sources.web import WebSource
from millrace_fetch.transfer.client import Client
from millrace_fetch.transfer.ranges import Place, read_place
from millrace_fetch.transfer.remote_file import read_excerpt
from testing.model_sources.servers import Fault, Files, WebFolderServer
from tests.fetch.conftest import SHARDS, Fetcher

MISPLACED = r"model-0000.-of-00002\.safetensors was sent from byte 0, but byte \d+ was requested"


@pytest.fixture(autouse=True)
def _small_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace_fetch.transfer.download.REQUEST_BYTES", 60_000)


@pytest.fixture
async def client(folder_server: WebFolderServer) -> AsyncIterator[Client]:
    source = WebSource(parse_uri(folder_server.uri))  # type: ignore[arg-type]
    async with Client(source.authorize, 1) as client:
        yield client


def begin_at_zero(files: Files) -> Fault:
    """Answer with as many bytes as were asked for, from the file's beginning on."""

    def fault(request: web.Request) -> web.Response | None:
        if "Range" not in request.headers:
            return None
        first, _, last = request.headers["Range"].removeprefix("bytes=").partition("-")
        num_bytes, name = int(last) + 1 - int(first), request.path.rpartition("/")[2]
        content = files.contents[name]
        place = f"bytes 0-{num_bytes - 1}/{len(content)}"
        headers = {"ETag": files.etag_of(name), "Content-Range": place}
        return web.Response(status=206, body=content[:num_bytes], headers=headers)

    return fault


def say_nothing_of_the_place(files: Files) -> Fault:
    """Answer with the right bytes, and do not say where they begin."""

    def fault(request: web.Request) -> web.Response | None:
        if "Range" not in request.headers:
            return None
        first, _, last = request.headers["Range"].removeprefix("bytes=").partition("-")
        name = request.path.rpartition("/")[2]
        body = files.contents[name][int(first) : int(last) + 1]
        return web.Response(status=206, body=body, headers={"ETag": files.etag_of(name)})

    return fault


async def test_a_part_of_another_place_is_not_taken(fetcher: Fetcher, folder_server: WebFolderServer) -> None:
    folder_server.files.faults.append(begin_at_zero(folder_server.files))
    with pytest.raises(UnavailableError, match=f"{MISPLACED}, 6 times in a row"):
        await fetcher.fetch(folder_server.uri)
    assert not {*SHARDS} & {*fetcher.names()}
    folder_server.files.faults.clear()
    await fetcher.fetch(folder_server.uri)
    fetcher.check(folder_server.files.contents)


async def test_an_excerpt_of_another_place_is_not_taken(
    folder_server: WebFolderServer, client: Client
) -> None:
    folder_server.files.faults.append(begin_at_zero(folder_server.files))
    file = RemoteFile(SHARDS[0], f"{folder_server.uri}/{SHARDS[0]}", 100_000)
    assert (await read_excerpt(client, file, 0, 10)).content == folder_server.files.contents[SHARDS[0]][:10]
    with pytest.raises(UnavailableError, match=MISPLACED):
        await read_excerpt(client, file, 10, 20)


async def test_a_server_that_does_not_say_the_place_is_believed(
    fetcher: Fetcher, folder_server: WebFolderServer, client: Client
) -> None:
    files = folder_server.files
    files.faults.append(say_nothing_of_the_place(files))
    await fetcher.fetch(folder_server.uri)
    fetcher.check(files.contents)
    file = RemoteFile(SHARDS[0], f"{folder_server.uri}/{SHARDS[0]}", 100_000)
    assert (await read_excerpt(client, file, 10, 20)).content == files.contents[SHARDS[0]][10:20]


@pytest.mark.parametrize(
    ("content_range", "expected"),
    [
        ("bytes 0-9/100", Place(0, 100)),
        ("Bytes 10-19/100", Place(10, 100)),
        ("bytes 10-19/*", Place(10, None)),
        ("bytes=10-19/100", Place(10, 100)),
        ("bytes */100", Place(None, 100)),
        ("", Place(None, None)),
        ("10", Place(None, None)),
        ("items x-y/z", Place(None, None)),
        (f"bytes {'9' * 5000}-9/{'9' * 5000}", Place(None, None)),
        ("bytes \u0661-\u0662/\u0663", Place(None, None)),
    ],
)
def test_a_place_is_read_as_far_as_it_is_said(content_range: str, expected: Place) -> None:
    assert read_place(content_range) == expected
