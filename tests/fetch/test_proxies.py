"""Every source through the proxy of the environment, and beside it where NO_PROXY says so."""

import base64
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from millrace_fetch.cli.command import trusting
from millrace_fetch.errors import FetchError, SourceError, UnavailableError
from testing.model_sources.authority import NAME, Authority
from testing.model_sources.s3_server import ACCOUNT
from testing.model_sources.servers import Server
from tests.fetch.adverse import SERVINGS, Adverse
from tests.fetch.conftest import NEEDED, SHARDS, Fetcher
from tests.fetch.proxy import Proxy
from tests.fetch.secured import Serve, serve_hub, serve_oci, serve_s3, serve_web
from tests.fetch.tunnel import Tunnel

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


SECURED = [serve_hub, serve_s3, serve_oci, serve_web]
OF_CLIENTS = SECURED[:2]
"""One for each HTTP client that we have: S3 is listed by botocore."""
ACCOUNT_OF_PROXY = "someone:pass-of-the-proxy"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
async def uri(
    request: pytest.FixtureRequest, fetcher: Fetcher, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[str]:
    """Where a source is that speaks TLS, with a certificate of our own authority."""
    monkeypatch.setattr("millrace_fetch.sources.oci._scheme_of", lambda _: "https")
    serve: Serve = request.param
    async with serve(fetcher, authority) as uri:
        monkeypatch.setenv("AWS_ENDPOINT_URL", fetcher.endpoint or "https://127.0.0.1:9")
        with trusting(authority.certificate):
            yield uri


@pytest.mark.parametrize("uri", OF_CLIENTS, indirect=True)
async def test_what_is_inside_tls_comes_through_the_proxy_which_sees_hosts_alone(
    fetcher: Fetcher, uri: str, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = urlsplit(fetcher.endpoint or uri).netloc
    fetcher.endpoint = f"https://{NAME}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", fetcher.endpoint)
    async with Tunnel({f"{NAME}:443": host}) as tunnel:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{ACCOUNT_OF_PROXY}@{tunnel.host}")
        await fetcher.fetch(uri.replace(host, NAME))
    fetcher.check(contents)
    assert tunnel.num_bytes > sum(len(contents[name]) for name in NEEDED)
    assert tunnel.authorizations == {f"Basic {base64.b64encode(ACCOUNT_OF_PROXY.encode()).decode()}"}
    assert f"CONNECT {NAME}:443 HTTP/1.1" in [line.replace("HTTP/1.0", "HTTP/1.1") for line in tunnel.asked]
    assert all(line.startswith("CONNECT ") and line.count("/") == 1 for line in tunnel.asked)


@pytest.mark.parametrize("uri", OF_CLIENTS, indirect=True)
async def test_a_host_of_no_proxy_gets_no_tunnel(
    fetcher: Fetcher, uri: str, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Tunnel({}) as tunnel:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{tunnel.host}")
        monkeypatch.setenv("NO_PROXY", "example.com,127.0.0.1")
        await fetcher.fetch(uri)
    fetcher.check(contents)
    assert tunnel.asked == []


REFUSALS: dict[int, tuple[type[FetchError], str]] = {
    403: (
        SourceError,
        "the proxy of the environment answered 403: let its owner allow the host, or name it in",
    ),
    407: (SourceError, "the proxy of the environment demands name and password: write them into its URL"),
    501: (SourceError, "the proxy of the environment answered 501: let its owner allow the host, or name it"),
    503: (UnavailableError, "the proxy of the environment answered 503, 6 times in a row"),
}


@pytest.mark.parametrize("status", REFUSALS)
@pytest.mark.parametrize("uri", OF_CLIENTS, indirect=True)
async def test_a_proxy_that_makes_no_tunnel_is_told_of_without_its_password(
    fetcher: Fetcher, uri: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, told = REFUSALS[status]
    async with Tunnel({}, status) as tunnel:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{ACCOUNT_OF_PROXY}@{tunnel.host}")
        with pytest.raises(kind, match=told) as caught:
            await fetcher.fetch(uri)
    assert "https://127.0.0.1:" in str(caught.value)
    assert "pass-of-the-proxy" not in "".join([str(caught.value), *fetcher.witness.said])
    assert len(tunnel.asked) == (6 if kind is UnavailableError else 1)


@pytest.mark.parametrize("uri", OF_CLIENTS, indirect=True)
async def test_a_proxy_that_is_not_there_is_told_of_without_its_password(
    fetcher: Fetcher, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://{ACCOUNT_OF_PROXY}@127.0.0.1:9")
    with pytest.raises(UnavailableError, match="the proxy of the environment can't be reached") as caught:
        await fetcher.fetch(uri)
    assert "pass-of-the-proxy" not in "".join([str(caught.value), *fetcher.witness.said])


async def want_password(_: web.Request) -> web.Response:
    return web.Response(status=407, headers={"Proxy-Authenticate": 'Basic realm="x"'})


@pytest.mark.parametrize("served", ["hub", "s3"], indirect=True)
async def test_a_proxy_that_wants_a_password_for_plain_http_is_told_of(
    fetcher: Fetcher, served: Adverse, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Server(want_password) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("AWS_ENDPOINT_URL", served.endpoint or "http://127.0.0.1:9")
        with pytest.raises(SourceError, match="demands name and password: write them into its URL"):
            await fetcher.fetch(served.uri)
