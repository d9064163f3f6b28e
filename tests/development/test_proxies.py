import os

import pytest

from development import proxies


@pytest.fixture(autouse=True)
def nothing_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxies, "_dropped", {})
    for name in proxies.NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", ["http_proxy", "HTTPS_PROXY", "all_proxy", "NO_PROXY"])
def test_a_proxy_is_dropped_and_only_what_downloads_has_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "proxy")
    proxies.drop_proxies()
    assert name not in os.environ
    assert proxies.outside_environment()[name] == "proxy"
    with proxies.going_outside():
        assert os.environ[name] == "proxy"
    assert name not in os.environ


def test_no_proxy_is_none_outside() -> None:
    proxies.drop_proxies()
    with proxies.going_outside():
        assert not set(proxies.NAMES) & set(os.environ)
    assert proxies.outside_environment() == dict(os.environ)
