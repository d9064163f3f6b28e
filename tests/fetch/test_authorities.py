"""Servers whose certificate an authority of their owner's has signed, as inside a company."""

import pytest

from millrace_fetch.cli.command import VARIABLES, trusting
from millrace_fetch.errors import SourceError
from millrace_fetch.sources import oci
from testing.model_sources.authority import Authority
from tests.fetch.conftest import Fetcher, make_model
from tests.fetch.secured import Serve, serve_hub, serve_oci, serve_web


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"))


@pytest.fixture(autouse=True)
def _untold(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(oci, "_scheme_of", lambda _: "https")  # also on 127.0.0.1


@pytest.mark.parametrize("serve", [serve_hub, serve_web, serve_oci])
async def test_what_an_authority_has_signed_is_trusted_and_of_no_other(
    serve: Serve, fetcher: Fetcher, authority: Authority, stranger: Authority
) -> None:
    async with serve(fetcher, authority) as uri:
        for path in (None, stranger.certificate):
            with trusting(path), pytest.raises(SourceError, match=r"into the key ca\.crt of the Secret"):
                await fetcher.fetch(uri)
        with trusting(authority.certificate):
            await fetcher.fetch(uri)
    fetcher.check(make_model())


async def test_an_authority_is_trusted_beside_that_of_the_environment(
    fetcher: Fetcher, authority: Authority, stranger: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    async with serve_web(fetcher, authority) as uri:
        with trusting(stranger.certificate):
            await fetcher.fetch(uri)
    fetcher.check(make_model())
