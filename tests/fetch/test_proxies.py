"""Every source through the proxy of the environment, and beside it where NO_PROXY says so."""

from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest

from tests.fetch.adverse import SERVINGS, Adverse
from tests.fetch.conftest import NEEDED, SHARDS, Fetcher
from tests.fetch.proxy import Proxy
from tests.fetch.s3_server import ACCOUNT

NAME = "models.invalid"
"""No DNS has it: who asks for it without the proxy finds nothing."""
VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name, value in (ACCOUNT | {"DOCKER_CONFIG": "/nowhere", "AWS_REGION": "us-east-1"}).items():
        monkeypatch.setenv(name, value)


@pytest.fixture(params=SERVINGS)
async def served(
    request: pytest.FixtureRequest, fetcher: Fetcher, contents: dict[str, bytes]
) -> AsyncIterator[Adverse]:
    """A source, which does nobody harm here."""
    async with SERVINGS[request.param](fetcher, contents) as served:
        yield served


def find_host(served: Adverse, fetcher: Fetcher) -> str:
    return urlsplit(fetcher.endpoint or served.endpoint or served.uri).netloc


async def test_names_and_bytes_come_through_the_proxy(
    fetcher: Fetcher, served: Adverse, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = find_host(served, fetcher)
    fetcher.endpoint = f"http://{NAME}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", fetcher.endpoint)
    monkeypatch.setenv("MILLRACE_OCI_PLAIN_HTTP", NAME)
    async with Proxy({NAME: host}) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        await fetcher.fetch(served.uri.replace(host, NAME))
    fetcher.check(contents)
    assert proxy.num_requests[NAME] > 1
    assert proxy.num_bytes > sum(len(contents[name]) for name in NEEDED)
    if served.endpoint:
        assert any("list-type=2" in path for path in proxy.paths)
        assert any(path.endswith(f"/{SHARDS[0]}") for path in proxy.paths)


async def test_a_host_of_no_proxy_is_asked_without_it(
    fetcher: Fetcher, served: Adverse, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Proxy({}) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("NO_PROXY", "example.com,127.0.0.1")
        monkeypatch.setenv("AWS_ENDPOINT_URL", served.endpoint or "http://127.0.0.1:9")
        await fetcher.fetch(served.uri)
    fetcher.check(contents)
    assert proxy.paths == []
