"""What opens a model's source is in no object that the operator writes, also when the source refuses it.

The real command fails in the look's pod and in the replica's. Its words are what the kubelet tells of both.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from aiohttp import web

from testing.model_sources.processes import finish, start_command
from testing.model_sources.registry import Registry
from testing.model_sources.s3_server import ACCOUNT, SECRET, S3Server, refuse, running_moto
from testing.model_sources.servers import FakeHub
from testing.world import World, resolver_status
from tests.fetch.conftest import make_model
from tests.operator.status.test_causes import EXTERNAL, fetching

SIGNATURE = "secret-signature"
PASSWORD = "secret-password"


class Served(NamedTuple):
    """A source that lets us in and then refuses the bytes, at an address that is signed."""

    uri: str
    environment: dict[str, str]
    secrets: Sequence[str]


Serving = Callable[[Path], AbstractAsyncContextManager[Served]]


def refuse_bytes(_: web.Request) -> web.StreamResponse:
    return web.Response(status=400)


@asynccontextmanager
async def serving_hub(_: Path) -> AsyncIterator[Served]:
    async with FakeHub(make_model()) as hub:
        hub.token = "hf_secret"
        hub.large.faults.append(refuse_bytes)
        environment = {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": hub.token}
        yield Served("hf://org/m@main", environment, [hub.token])


@asynccontextmanager
async def serving_s3(_: Path) -> AsyncIterator[Served]:
    def lead_on(request: web.Request) -> web.StreamResponse | None:
        if "list-type" in request.query:
            return None
        if SIGNATURE in request.query_string:
            return refuse(400, "Odd")
        return web.Response(status=307, headers={"Location": f"{request.path}?X-Amz-Signature={SIGNATURE}"})

    with running_moto() as bucket:
        bucket.fill(make_model())
        async with S3Server(bucket.endpoint) as server:
            server.faults.append(lead_on)
            environment = ACCOUNT | {"AWS_ENDPOINT_URL": server.endpoint, "AWS_SESSION_TOKEN": PASSWORD}
            yield Served("s3://models/org/m", environment, [SECRET, PASSWORD])


@asynccontextmanager
async def serving_registry(folder: Path) -> AsyncIterator[Served]:
    async with Registry() as registry:
        registry.push_files(make_model())
        registry.account, registry.token_uses = f"me:{PASSWORD}", 100
        registry.blobs.faults.append(refuse_bytes)
        auth = base64.b64encode(registry.account.encode()).decode()
        (folder / "config.json").write_text(json.dumps({"auths": {registry.host: {"auth": auth}}}))
        secrets = [PASSWORD, auth, "secret-token"]
        yield Served(f"{registry.uri}:v1", {"DOCKER_CONFIG": str(folder)}, secrets)


SOURCES: dict[str, Serving] = {"hf": serving_hub, "s3": serving_s3, "oci": serving_registry}


async def read_log(served: Served, *flags: str) -> str:
    """Return what a container that fails writes: its log, and what the kubelet tells of its end."""
    environment = {"HF_HOME": "/nowhere"} | served.environment
    status, out, err = await finish(await start_command(served.uri, *flags, **environment))
    assert status == 3, err
    return out + err


def read_all(world: World) -> str:
    """Return all that anybody could read in the cluster."""
    everything = [*map(dict, world.cluster.objects.values()), *world.cluster.events]
    return json.dumps(everything, ensure_ascii=False)


@pytest.mark.parametrize("source", SOURCES)
async def test_no_object_has_what_opens_a_source(
    source: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with SOURCES[source](tmp_path) as served:
        look = read_log(served, "--resolve", str(tmp_path / "found"))
        look_log, fetch_log = await asyncio.gather(look, read_log(served, "--to", str(tmp_path / "model")))
    model = {"uri": served.uri, "credentials": {"secretName": "access"}}
    world = World(model=model, scaling=EXTERNAL, replicas=1)
    await world.settle()
    (pod,) = world.objects("Pod")
    world.cluster.put({**pod, "status": resolver_status(look_log, code=3)})
    await world.settle()
    told = [world.condition("Degraded")["message"]]
    written = [read_all(world)]

    world.model_revision = "1" * 40
    await world.settle()
    ended = {"exitCode": 3, "reason": "Error", "message": fetch_log}
    (pod,) = world.pods()
    status = fetching({"waiting": {"reason": "CrashLoopBackOff"}}, **ended)
    world.cluster.put({**pod, "status": status})
    await world.settle()
    told.append(world.condition("Degraded")["message"])
    written.append(read_all(world))

    for words in told:
        assert "?… answered 400" in words, "the address is told, without what is secret in it"
    assert any("?… answered 400" in event["message"] for event in world.cluster.events)
    for secret in (*served.secrets, SIGNATURE):
        for text in (look_log, fetch_log, *written, caplog.text):
            assert secret not in text
    kinds = {key.kind for key in world.cluster.objects}
    assert {"InferenceService", "ControllerRevision", "Deployment", "Pod"} <= kinds
