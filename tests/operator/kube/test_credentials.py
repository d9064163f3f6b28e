from collections.abc import Callable
from types import SimpleNamespace

import pytest
from kubernetes.aio.config import ConfigException

from millrace_kubernetes.errors import AccessError
from millrace_operator.kube.credentials import Access


def access(refresh: Callable[[object], None] | None, **keys: str) -> Access:
    return Access(SimpleNamespace(refresh_api_key_hook=refresh, api_key=keys), "https://api")


def fail_with(error: Exception) -> Callable[[object], None]:
    def fail(_: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize("token", ["abc", "bearer abc"])
async def test_a_token_is_a_bearer_token(token: str) -> None:
    headers = await access(None, BearerToken=token).headers()
    assert headers["Authorization"].lower() == "bearer abc"
    assert await access(None).headers() == {}


@pytest.mark.parametrize(
    "error", [OSError("no such token file"), ConfigException("Token file exists but empty."), ValueError("?")]
)
async def test_a_token_that_cannot_be_read_now_is_worth_another_try(error: Exception) -> None:
    with pytest.raises(AccessError, match="no credentials"):
        await access(fail_with(error)).headers()
