"""Sources whose fetch is killed at random moments, again and again, and what is there after each kill.

Between two kills a source may go on to its other revision. Some of the fetches do not wait for the disk.
"""

import hashlib
import json
import random
import shutil
from asyncio import timeout
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from testing.model_sources.processes import Forked, execute_fetch, finish
from testing.model_sources.registry import TAR, Registry, make_tar
from testing.model_sources.s3_server import ACCOUNT, S3Server, running_moto
from testing.model_sources.servers import FakeHub, WebFolderServer

CONNECTIONS = 2
BYTES_PER_SECOND = 30e6
"""Of each connection: a shard of 20 MiB takes longer than a process of ours lives."""
MOVES_SHARE = 0.25
"""Of the kills: after them the source goes on to its other revision."""
UNSYNCED_SHARE = 0.4
"""Of the models, from nothing to whole: none of a model's fetches waits for the disk."""
CONFIG, CHANGED, GONE = "config.json", "model-00002-of-00002.safetensors", "generation_config.json"
"""What is another file in the other revision, or not there."""
WINDOW_SECONDS = 0.8
"""From a fetch's first words to the latest kill. A model that is there in part is whole by then."""


@dataclass(frozen=True)
class Served:
    """A model that a server has."""

    uri: str
    environment: dict[str, str]
    count_sent: Callable[[], int]
    """The bytes of large files that were sent so far."""
    show: Callable[[dict[str, bytes]], object]
    """Have these files from now on."""


Serving = Callable[[dict[str, bytes]], AbstractAsyncContextManager[Served]]
Start = Callable[..., Awaitable[Process | Forked]]


@dataclass
class Tale:
    """What came of the kills."""

    num_kills: int = 0
    """Those that a process met alive."""
    num_wrong: int = 0
    """Faults found after a kill: a name without its content, or a folder called whole that isn't."""
    num_whole: int = 0
    """How often the model was whole and was fetched again."""
    num_moves: int = 0
    """How often the source went on to its other revision, from a part of a model or from a whole one."""
    num_unsynced: int = 0
    """The fetches that did not wait for the disk."""
    faults: list[str] = field(default_factory=list)


def change(contents: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files of the other revision: most are alike, two have other bytes, and one is gone."""
    others = {CONFIG: contents[CONFIG].replace(b"llama", b"qwen2"), CHANGED: contents[CHANGED][::-1]}
    return {name: content for name, content in (dict(contents) | others).items() if name != GONE}


@asynccontextmanager
async def serving_hub(contents: dict[str, bytes]) -> AsyncIterator[Served]:
    """A Hub."""
    async with FakeHub(dict(contents)) as hub:

        def show(contents: dict[str, bytes]) -> None:
            hub.become(hashlib.sha1(contents[CHANGED]).hexdigest(), contents)

        show(contents)
        hub.large.bytes_per_second = BYTES_PER_SECOND
        yield Served("hf://org/m", {"HF_ENDPOINT": hub.endpoint}, lambda: sum(hub.large.sent.values()), show)


@asynccontextmanager
async def serving_s3(contents: dict[str, bytes]) -> AsyncIterator[Served]:
    """A bucket."""
    with running_moto() as bucket:
        bucket.fill(contents)
        async with S3Server(bucket.endpoint) as server:
            server.bytes_per_second = BYTES_PER_SECOND
            account = ACCOUNT | {"AWS_ENDPOINT_URL": server.endpoint}
            yield Served("s3://models/org/m", account, lambda: sum(server.sent.values()), bucket.show)


@asynccontextmanager
async def serving_artifact(contents: dict[str, bytes]) -> AsyncIterator[Served]:
    """A registry whose layers are files."""
    async with Registry() as registry:
        yield _serve(registry, contents, registry.push_files)


@asynccontextmanager
async def serving_image(contents: dict[str, bytes]) -> AsyncIterator[Served]:
    """A registry whose layers have files. The upper one has those that change."""
    async with Registry() as registry:

        def push(contents: dict[str, bytes]) -> None:
            layers: tuple[dict[str, bytes], ...] = ({}, {})
            for name, content in contents.items():
                layers[name in (CONFIG, CHANGED, GONE)][f"models/{name}"] = content
            registry.push([(make_tar({**layer}), TAR, {}) for layer in layers])

        yield _serve(registry, contents, push)


def _serve(
    registry: Registry, contents: dict[str, bytes], push: Callable[[dict[str, bytes]], object]
) -> Served:
    push(contents)
    registry.token_uses = 20
    registry.blobs.bytes_per_second = BYTES_PER_SECOND
    nobody = {"DOCKER_CONFIG": "/nowhere"}
    return Served(f"{registry.uri}:v1", nobody, lambda: sum(registry.blobs.sent.values()), push)


@asynccontextmanager
async def serving_folder(contents: dict[str, bytes]) -> AsyncIterator[Served]:
    """A folder of a plain web server."""
    async with WebFolderServer(dict(contents)) as server:
        server.files.bytes_per_second = BYTES_PER_SECOND
        yield Served(server.uri, {}, lambda: sum(server.files.sent.values()), server.files.become)


SOURCES: dict[str, Serving] = {
    "hub": serving_hub,
    "s3": serving_s3,
    "oci artifact": serving_artifact,
    "oci image": serving_image,
    "web": serving_folder,
}


class Trial:
    """One folder, into which a model is fetched by processes that are killed."""

    def __init__(
        self,
        served: Served,
        folder: Path,
        contents: dict[str, bytes],
        wanted: Collection[str],
        seed: int,
        *,
        start: Start = execute_fetch,
    ) -> None:
        """`contents` is what the source has, and `wanted` names those of its files that are to come."""
        self._served, self._execute = served, start
        self._folder = folder
        self._revisions = (contents, change(contents))
        self._wanted = [
            {
                name: hashlib.sha256(content).hexdigest()
                for name, content in revision.items()
                if name in wanted
            }
            for revision in self._revisions
        ]
        self._now = 0
        """Which of the two the source has."""
        self._shown = {0}
        """Those that it has had since the folder was empty."""
        self._names: dict[str, int] = {}
        """What the fetches call the revisions."""
        # One for each, so that no draw depends on how long a process lived before.
        self._moments, self._moves, self._syncs = (random.Random(f"{seed} {use}") for use in "mos")
        self._flags = self._draw_flags()
        self.tale = Tale()

    async def run(self, num_kills: int) -> Tale:
        """Kill so often, and let the last one end."""
        while self.tale.num_kills < num_kills:
            await self._kill(await self._start())
            is_whole = self._look()
            if self._moves.random() < MOVES_SHARE:
                self._move_on()
            elif is_whole:
                self._begin_anew()
        status, _, err = await finish(await self._start())
        if not self._look() or status != 0:
            self._blame(f"the last one ended with {status}, and the model is not whole: {err}")
        else:
            self._begin_anew()
        return self.tale

    async def _start(self) -> Process | Forked:
        environment = {"HF_HOME": str(self._folder.parent)} | self._served.environment
        flags = ("--connections", str(CONNECTIONS), *self._flags)
        self.tale.num_unsynced += "--no-sync" in flags
        return await self._execute(self._served.uri, self._folder, *flags, **environment)

    async def _kill(self, process: Process | Forked) -> None:
        """Kill at a random moment after the process has begun to fetch: before, there is nothing to spoil."""
        assert process.stderr
        await process.stderr.readline()
        with suppress(TimeoutError):
            async with timeout(self._moments.random() * WINDOW_SECONDS):
                await process.wait()
        if process.returncode is None:
            process.kill()
            self.tale.num_kills += 1
        _, err = await process.communicate()
        if process.returncode not in (0, -9):
            self._blame(f"one ended with {process.returncode}: {err.decode()}")

    def _look(self) -> bool:
        """Compare what has a name. Return whether the model is called whole, as the source has it now."""
        found = {name: hash_file(self._folder / name) for name in list_files(self._folder)}
        known = [self._wanted[revision] for revision in self._shown]
        if bad := [name for name, digest in found.items() if digest not in [of.get(name) for of in known]]:
            self._blame(f"not what was announced: {bad}")
        marker = self._folder / ".millrace" / "manifest.json"
        if not marker.exists():
            return False
        name = json.loads(marker.read_text())["revision"]
        revision = self._names.setdefault(name, self._now)
        if found != self._wanted[revision]:
            missing = {name for name, digest in self._wanted[revision].items() if found.get(name) != digest}
            self._blame(f"called whole without {missing or 'all that is of another revision'}")
        return revision == self._now

    def _move_on(self) -> None:
        self._now = 1 - self._now
        self._shown.add(self._now)
        self._served.show(self._revisions[self._now])
        self.tale.num_moves += 1

    def _begin_anew(self) -> None:
        shutil.rmtree(self._folder)
        self._shown = {self._now}
        self._flags = self._draw_flags()
        self.tale.num_whole += 1

    def _draw_flags(self) -> tuple[str, ...]:
        return ("--no-sync",) if self._syncs.random() < UNSYNCED_SHARE else ()

    def _blame(self, fault: str) -> None:
        self.tale.num_wrong += 1
        self.tale.faults.append(fault)


def list_files(folder: Path) -> Collection[str]:
    """Return the names of a model's files in a folder, without what a fetch has for itself."""
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return {name for name in names if not name.startswith(".millrace/")}


def hash_file(path: Path) -> str:
    """Return a file's SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
