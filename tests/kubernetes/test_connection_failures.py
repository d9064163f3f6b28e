"""The words for a server that is not reached."""

import ssl
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from millrace_kubernetes.connection_failures import describe_failure
from testing.model_sources.authority import Authority


async def test_why_a_server_is_not_reached_is_said_in_words(tmp_path: Path) -> None:
    app = web.AppRunner(web.Application())
    await app.setup()
    await web.TCPSite(app, "127.0.0.1", 0, ssl_context=Authority(tmp_path).context()).start()
    trusting_nobody = ssl.create_default_context()

    async def fail(url: str) -> str:
        with pytest.raises(aiohttp.ClientError) as raised:
            await session.get(url, ssl=trusting_nobody)
        return describe_failure(raised.value)

    port = app.addresses[0][1]
    async with aiohttp.ClientSession() as session:
        untrusted = await fail(f"https://127.0.0.1:{port}")
        assert untrusted.startswith(f"cannot trust 127.0.0.1:{port}: [SSL: CERTIFICATE_VERIFY_FAILED]")
        assert (await fail("https://api.invalid:6443")).startswith("cannot connect to api.invalid:6443: ")
        await app.cleanup()
        refused = await fail(f"https://127.0.0.1:{port}")
    assert refused == f"cannot connect to 127.0.0.1:{port}: Connection refused"
    assert describe_failure(TimeoutError()) == "TimeoutError"
