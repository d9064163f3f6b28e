"""The command: its flags, its HTTP, and its life beside an API server over HTTP."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from millrace_node_cache import command
from millrace_node_cache.metrics import Metrics
from millrace_node_cache.models import ModelKey
from millrace_node_cache.plan import AmountLimit, ShareLimit
from millrace_node_cache.server import STILL_LIMIT_SECONDS, BadStartError, build_app, serve
from testing.addresses import url_of
from testing.model_sources.processes import until
from tests.node_cache.conftest import Root

A, B = ModelKey("shop", "a"), ModelKey("shop", "b")
NODE = "/api/v1/nodes/n1"


def test_the_flags_are_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("NODE_NAME", "n1")
    least = ["--root", "/disk", "--namespaces", "shop,search"]
    settings = command.read_settings(least)
    assert (settings.node, settings.namespaces) == ("n1", ("shop", "search"))
    assert (settings.limit, settings.look_seconds, settings.port) == (ShareLimit(80), 15, 8091)
    assert command.read_settings([*least, "--limit", "5Gi"]).limit == AmountLimit(5 << 30)
    for bad, words in (
        (["--limit", "80"], "'80' is no limit; write a share"),
        (["--look-seconds", "0"], "'0' is no number of seconds; write one from 0.1 to 3600"),
        (["--look-seconds", "x"], "'x' is no number of seconds"),
    ):
        with pytest.raises(SystemExit):
            command.read_settings([*least, *bad])
        assert words in capsys.readouterr().err
    monkeypatch.delenv("NODE_NAME")
    with pytest.raises(SystemExit):
        command.read_settings(least)
    assert "--node" in capsys.readouterr().err


def test_without_a_cluster_it_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    assert command.main(["--root", "/disk", "--namespaces", "shop", "--node", "n1"]) == 64
    assert "millrace node-cache: This is no pod with a service account" in capsys.readouterr().err


async def test_it_lives_while_looks_end() -> None:
    still = 0.0
    async with TestClient(TestServer(build_app(Metrics().registry, lambda: still))) as http:
        assert (await http.get("/livez")).status == 200
        still = STILL_LIMIT_SECONDS
        assert (await http.get("/livez")).status == 503
        assert "millrace_node_cache_models 0.0" in await (await http.get("/metrics")).text()


async def test_a_port_that_is_taken_is_told() -> None:
    registry = Metrics().registry
    async with serve(registry, lambda: 0.0, "127.0.0.1", 0) as site:
        port = int(url_of(site, "127.0.0.1").rsplit(":", 1)[1])
        with pytest.raises(BadStartError, match=str(port)):
            async with serve(registry, lambda: 0.0, "127.0.0.1", port):
                pass


class FakeServer:
    """The few paths of the API server that it asks."""

    def __init__(self) -> None:
        self.pods: list[dict[str, Any]] | None = []
        self.labels: dict[str, str | None] = {}
        self.queries: list[str] = []

    async def list_pods(self, request: web.Request) -> web.Response:
        self.queries.append(request.query_string)
        return web.json_response({"items": self.pods})

    async def get_node(self, _request: web.Request) -> web.Response:
        return web.json_response({"metadata": {"labels": self.labels}})

    async def patch_node(self, request: web.Request) -> web.Response:
        assert request.content_type == "application/merge-patch+json"
        patch = await request.json()
        self.labels |= patch["metadata"]["labels"]
        self.labels = {name: value for name, value in self.labels.items() if value is not None}
        return web.json_response({})

    @asynccontextmanager
    async def running(self, folder: Path) -> AsyncIterator[Path]:
        app = web.Application()
        app.router.add_get("/api/v1/namespaces/shop/pods", self.list_pods)
        app.router.add_get(NODE, self.get_node)
        app.router.add_patch(NODE, self.patch_node)
        async with TestServer(app) as server:
            kubeconfig = folder / "kubeconfig"
            named = {
                "clusters": [{"name": "c", "cluster": {"server": str(server.make_url("")).rstrip("/")}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
            kubeconfig.write_text(yaml.safe_dump(named))
            yield kubeconfig


async def start(root: Root, kubeconfig: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(str(Path(sys.executable).with_name("millrace")), "node-cache", "--root", str(root.path)),
        *("--namespaces", "shop", "--limit", "1500Ki", "--look-seconds", "0.1", "--port", "0"),
        env=os.environ | {"KUBECONFIG": str(kubeconfig), "NODE_NAME": "n1"},
        stderr=asyncio.subprocess.PIPE,
    )


@pytest.mark.slow
async def test_an_answer_that_is_no_list_of_pods_evicts_nothing(root: Root, tmp_path: Path) -> None:
    api = FakeServer()
    api.pods = None
    root.put(A)
    root.put(B)
    async with api.running(tmp_path) as kubeconfig:
        process = await start(root, kubeconfig)
        await until(lambda: len(api.queries) >= 3)
        process.terminate()
        _, log = await process.communicate()
    assert "did not answer a complete list of pods" in log.decode()
    assert root.has(A)
    assert root.has(B)


@pytest.mark.slow
async def test_the_process_keeps_what_is_read_and_leaves_its_labels(root: Root, tmp_path: Path) -> None:
    api = FakeServer()
    api.pods = [{"metadata": {"labels": {"millrace.dev/kept-model": A.name}}, "status": {"phase": "Running"}}]
    root.put(A)
    root.put(B)
    async with api.running(tmp_path) as kubeconfig:
        process = await start(root, kubeconfig)
        await until(lambda: set(api.labels) == {f"models.millrace.dev/{A.name}"} and not root.has(B))
        process.terminate()
        _, log = await process.communicate()
        assert process.returncode == 0, log.decode()
    assert re.search(r"evicted shop/b: \d+ bytes", log.decode())
    assert set(api.queries) == {"fieldSelector=spec.nodeName%3Dn1&labelSelector=millrace.dev/kept-model"}
    assert api.labels
    assert root.has(A)
