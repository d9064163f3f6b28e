"""`millrace gateway` as a process: on uvloop, from flags to exit status."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from millrace_gateway.command import main, read_settings
from millrace_gateway.server import Gateway
from millrace_gateway.settings import Settings
from testing.addresses import url_of
from testing.api_server import FakeApiServer
from tests.gateway.conftest import PODS, SERVICES, make_pod, make_service, next_address
from tests.kubernetes.test_access import write_kubeconfig

COMMAND = "import sys; from millrace_gateway.command import main; sys.exit(main(sys.argv[1:]))"


def test_settings_come_from_flags_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MILLRACE_BIND_ADDRESS", raising=False)
    assert (read_settings([]).bind_address, read_settings([]).port) == ("", 8080)
    monkeypatch.setenv("MILLRACE_BIND_ADDRESS", "127.1.2.3")
    settings = read_settings(["--port", "9", "--cluster-domain", "corp"])
    assert (settings.bind_address, settings.port, settings.cluster_domain) == ("127.1.2.3", 9, "corp")
    assert read_settings(["--host", "127.0.0.1"]).bind_address == "127.0.0.1"


@pytest.mark.parametrize("flags", [["--port", "x"], ["--port", "65536"], ["--port", "-1"], ["--canary"]])
def test_a_bad_flag_is_refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        read_settings(flags)
    assert "usage: millrace gateway" in capsys.readouterr().err


@pytest.mark.parametrize(("memory", "number"), [("16Mi", 2**24), ("100Mi", 100 * 2**20), ("1Gi", 2**30)])
def test_each_tenants_half_of_the_memory_has_room_for_a_body(
    memory: str, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert read_settings(["--body-memory", memory]).body_memory_bytes == number
    with pytest.raises(SystemExit, match="2"):
        read_settings(["--body-memory", "15Mi"])
    assert "write 16Mi or more" in capsys.readouterr().err


def test_without_a_cluster_it_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    assert main([]) == 64
    assert "set KUBECONFIG" in capsys.readouterr().err


@pytest.fixture
def kubeconfig(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Credentials for a cluster that does not answer."""
    environ = write_kubeconfig(tmp_path / "config", {"server": "http://127.0.0.1:1"}, {"token": "t"})
    monkeypatch.setenv("KUBECONFIG", environ["KUBECONFIG"])
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


@pytest.mark.usefixtures("kubeconfig")
def test_a_port_taken_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for flag, other in (("--port", "--metrics-port"), ("--metrics-port", "--port")):
            assert main(["--host", "127.0.0.1", flag, str(port), other, "0"]) == 1
            assert capsys.readouterr().err == (
                f"millrace gateway: can't listen on 127.0.0.1:{port}: Address already in use; "
                f"end the process that listens there, or give another {flag}\n"
            )


@pytest.mark.usefixtures("kubeconfig")
def test_an_address_of_another_machine_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--host", "192.0.2.1", "--port", "0"]) == 1
    assert "another address with --host or MILLRACE_BIND_ADDRESS" in capsys.readouterr().err


async def test_the_log_names_the_port_that_it_took(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with Gateway(Settings("", 0)).serve() as sites:
        for site, flag in zip(sites, ("--port", "--metrics-port"), strict=True):
            port = url_of(site, "127.0.0.1").rpartition(":")[2]
            assert f"listening on *:{port} ({flag})" in caplog.messages


@asynccontextmanager
async def serving(handler: object, address: str, port: int) -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, address, port).start()
    yield runner.addresses[0][1]
    await runner.cleanup()


async def test_a_term_signal_lets_the_stream_end_and_exits_0(tmp_path: Path) -> None:
    release, address = asyncio.Event(), next_address()

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"begun")
        await release.wait()
        await response.write(b" ended")
        return response

    api = FakeApiServer()
    api.put(SERVICES, make_service("a", "chat"))
    api.put(PODS, make_pod("a", "chat", "p1", address=address))
    host, port = next_address(), "8080"
    async with (
        asyncio.timeout(20),
        serving(api.handle, "127.0.0.1", 0) as api_port,
        serving(stream, address, 8000),
        aiohttp.ClientSession() as client,
    ):
        server = {"server": f"http://127.0.0.1:{api_port}"}
        environ = dict(os.environ) | write_kubeconfig(tmp_path / "config", server, {"token": "t"})
        environ.pop("KUBERNETES_SERVICE_HOST", None)
        arguments = ["--host", host, "--port", port]
        gateway = await asyncio.create_subprocess_exec(
            sys.executable, "-c", COMMAND, *arguments, env=environ, stderr=asyncio.subprocess.PIPE
        )
        url = f"http://{host}:{port}"
        await until_ready(client, url, 200)
        body = json.dumps({"model": "chat"})
        async with client.post(f"{url}/v1/completions", data=body) as response:
            assert await response.content.readany() == b"begun"
            gateway.send_signal(signal.SIGTERM)
            await until_ready(client, url, 503)
            release.set()
            assert await response.content.read() == b" ended"
        _, log = await gateway.communicate()
    assert gateway.returncode == 0, log.decode()
    assert b"draining: 1 requests in flight" in log
    assert b"Traceback" not in log


async def until_ready(client: aiohttp.ClientSession, url: str, status: int) -> None:
    while True:
        with suppress(aiohttp.ClientConnectorError):
            async with client.get(f"{url}/readyz") as response:
                if response.status == status:
                    return
        await asyncio.sleep(0.02)
