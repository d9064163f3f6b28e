"""What every source is refused for, and told of by name: wrong bytes, loops, silence, a full disk."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import ClientTimeout, web

from millrace_fetch.errors import (
    ChangedError,
    CorruptError,
    FolderError,
    SourceError,
    UnavailableError,
)
from millrace_fetch.sources import aws, registry_access, source
from millrace_fetch.transfer import client
from testing.model_sources.kills import SOURCES, Trial
from testing.model_sources.processes import finish, start_fetch
from testing.model_sources.registry import Registry
from testing.model_sources.s3_server import ACCOUNT
from testing.model_sources.servers import Server, once
from tests.fetch.adverse import (
    SERVINGS,
    Adverse,
    silent_server,
)
from tests.fetch.conftest import NEEDED, SHARDS, Fetcher, make_model

OF_DIGESTS = ["hub", "oci artifact", "oci image"]
QUICK = ClientTimeout(total=None, sock_connect=0.1, sock_read=0.1)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (ACCOUNT | {"DOCKER_CONFIG": "/nowhere"}).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
async def adverse(
    request: pytest.FixtureRequest,
    fetcher: Fetcher,
    contents: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Adverse]:
    async with SERVINGS[request.param](fetcher, contents) as adverse:
        if adverse.endpoint:
            monkeypatch.setenv("AWS_ENDPOINT_URL", adverse.endpoint)
        yield adverse


CHANGES = {
    "truncated": lambda content: content[:-100],
    "empty": lambda _: b"",
    "longer": lambda content: content + b"more",
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("adverse", SERVINGS, indirect=True)
async def test_a_file_of_another_size_is_refused_by_name(
    fetcher: Fetcher, adverse: Adverse, change: str
) -> None:
    called = adverse.send_instead(SHARDS[1], CHANGES[change])
    with pytest.raises((CorruptError, ChangedError)) as caught:
        await fetcher.fetch(adverse.uri)
    assert called in "\n".join([str(caught.value), *fetcher.witness.said])
    assert SHARDS[1] not in fetcher.names()
    assert not fetcher.is_marked()


@pytest.mark.parametrize("adverse", OF_DIGESTS, indirect=True)
async def test_flipped_bytes_are_refused_by_name(fetcher: Fetcher, adverse: Adverse) -> None:
    called = adverse.send_instead(SHARDS[1], lambda content: content[:-5] + b"wrong")
    with pytest.raises(CorruptError, match=f"{called} has sha256 .* twice: the source or a proxy"):
        await fetcher.fetch(adverse.uri)
    assert SHARDS[1] not in fetcher.names()
    assert not fetcher.is_marked()


@pytest.mark.parametrize("part", ["lists", "sends"])
@pytest.mark.parametrize("adverse", SERVINGS, indirect=True)
async def test_redirects_without_end_are_refused(fetcher: Fetcher, adverse: Adverse, part: str) -> None:
    faults = getattr(adverse, part)
    faults.append(lambda request: web.Response(status=307, headers={"Location": request.path_qs}))
    with pytest.raises(
        SourceError,
        match=r"redirects again and again|answered 307: a redirect to no bucket; check",
    ) as caught:
        await fetcher.fetch(adverse.uri)
    assert "secret" not in str(caught.value)
    assert not fetcher.is_marked()


@pytest.mark.parametrize("adverse", OF_DIGESTS[:2], indirect=True)
async def test_a_list_that_is_too_long_to_be_one_is_refused(
    fetcher: Fetcher, adverse: Adverse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "MAX_SMALL_BYTES", 1000)
    with pytest.raises(SourceError, match=r"is larger than .* MiB: refused"):
        await fetcher.fetch(adverse.uri)
    assert fetcher.names() == []


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("part", ["lists", "sends"])
@pytest.mark.parametrize("adverse", SERVINGS, indirect=True)
async def test_a_busy_source_is_waited_for(
    fetcher: Fetcher, adverse: Adverse, contents: dict[str, bytes], part: str, status: int
) -> None:
    faults = getattr(adverse, part)
    faults.append(once(lambda: web.Response(status=status, headers={"Retry-After": "0"}), 3))
    await fetcher.fetch(adverse.uri)
    fetcher.check(contents)
    assert any(f"answered {status}" in text and "retrying in" in text for text in fetcher.witness.said)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience of tenths of a second."""
    monkeypatch.setattr(client, "_TIMEOUT", QUICK)
    monkeypatch.setattr(registry_access, "_TIMEOUT", ClientTimeout(total=0.1))
    monkeypatch.setattr(aws, "_CONNECT_SECONDS", 0.1)
    monkeypatch.setattr(aws, "_READ_SECONDS", 0.1)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(
    "uri", ["hf://org/m", "s3://models/org/m", "oci://{host}/org/m", "{scheme}://{host}/m"]
)
async def test_a_host_that_says_nothing_is_given_up_by_name(
    fetcher: Fetcher, uri: str, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with silent_server() as host:
        fetcher.endpoint = f"{scheme}://{host}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", fetcher.endpoint)
        monkeypatch.setattr("millrace_fetch.sources.oci._scheme_of", lambda _: scheme)
        async with asyncio.timeout(20):
            with pytest.raises(UnavailableError, match="6 times in a row; the next run") as caught:
                await fetcher.fetch(uri.format(host=host, scheme=scheme))
    assert f"{scheme}://{host}" in str(caught.value)
    assert re.search(r"no answer in time|ReadTimeout|ConnectTimeout", str(caught.value))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("adverse", SERVINGS, indirect=True)
async def test_a_host_of_bytes_that_says_nothing_is_given_up(fetcher: Fetcher, adverse: Adverse) -> None:
    async with silent_server() as host:
        adverse.sends.append(lambda _: web.Response(status=307, headers={"Location": f"http://{host}/x"}))
        async with asyncio.timeout(20):
            with pytest.raises(UnavailableError, match="no answer in time, 6 times in a row"):
                await fetcher.fetch(adverse.uri)
    assert not fetcher.is_marked()


@pytest.mark.usefixtures("quick")
async def test_a_token_service_that_says_nothing_is_given_up_by_name(fetcher: Fetcher) -> None:
    async with Registry() as registry, silent_server() as host:
        registry.token_uses, registry.realm = 1, f"http://{host}/token"
        with pytest.raises(UnavailableError, match=f"http://{host}/token: no answer in time, 6 times"):
            await fetcher.fetch(f"{registry.uri}:v1")


_LIMITED = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
"""


@pytest.mark.parametrize("name", SOURCES)
async def test_a_full_disk_is_told_and_what_came_is_kept(name: str, tmp_path: Path) -> None:
    contents, folder = make_model(), tmp_path / "model"
    async with SOURCES[name](contents) as served:
        process = await start_fetch(served.uri, folder, before=_LIMITED, **served.environment)
        status, _, err = await finish(process)
        assert status == 1
        assert re.search("no space left for .*make room and run it again", err.splitlines()[-1])
        tale = await Trial(served, folder, contents, NEEDED, seed=1, start=start_fetch).run(0)
    assert (tale.num_wrong, tale.num_whole) == (0, 1), tale.faults


async def test_a_folder_that_is_a_link_to_itself_is_refused(fetcher: Fetcher) -> None:
    fetcher.folder.symlink_to(fetcher.folder)
    with pytest.raises(FolderError, match="can't be written"):
        await fetcher.fetch("hf://org/m")


async def test_a_token_service_that_redirects_is_refused_by_name(fetcher: Fetcher) -> None:
    async with Registry() as registry, Server(_redirect) as service:
        registry.token_uses, registry.realm = 1, f"{service.url}/token"
        with pytest.raises(SourceError, match=f"{service.url}/token answered 307: redirects of a token"):
            await fetcher.fetch(f"{registry.uri}:v1")


async def _redirect(request: web.Request) -> web.Response:
    return web.Response(status=307, headers={"Location": request.path_qs})
