"""Sources whose fetch is killed at random moments, again and again, and what is there after each kill."""

import hashlib
import random
import shutil
from asyncio import timeout
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.fetch.processes import finish, start_fetch
from tests.fetch.registry import TAR, Registry, make_tar
from tests.fetch.s3_server import ACCOUNT, S3Server, running_moto
from tests.fetch.servers import FakeHub, WebFolderServer

CONNECTIONS = 2
BYTES_PER_SECOND = 30e6
"""Of each connection: a shard of 20 MiB takes longer than a process of ours lives."""
WINDOW_SECONDS = 0.8
"""From a fetch's first words to the latest kill. A model that is there in part is whole by then."""


@dataclass(frozen=True)
class Served:
    """A model that a server has."""

    uri: str
    environment: dict[str, str]
    count_sent: Callable[[], int]
    """The bytes of large files that were sent so far."""


Serving = Callable[[dict[str, bytes]], AbstractAsyncContextManager[Served]]


@dataclass
class Tale:
    """What came of the kills."""

    num_kills: int = 0
    """Those that a process met alive."""
    num_wrong: int = 0
    """Faults found after a kill: a name without its content, or a folder called whole that isn't."""
    num_whole: int = 0
    """How often the model was whole; it then began anew."""
    faults: list[str] = field(default_factory=list)


@asynccontextmanager
async def serving_hub(contents: dict[str, bytes]) -> AsyncIterator[Served]:
    """A Hub."""
    async with FakeHub(contents) as hub:
        hub.large.bytes_per_second = BYTES_PER_SECOND
        yield Served("hf://org/m", {"HF_ENDPOINT": hub.endpoint}, lambda: sum(hub.large.sent.values()))


@asynccontextmanager
async def serving_s3(contents: dict[str, bytes]) -> AsyncIterator[Served]:
    """A bucket."""
    with running_moto() as bucket:
        bucket.fill(contents)
        async with S3Server(bucket.endpoint) as server:
            server.bytes_per_second = BYTES_PER_SECOND
            account = ACCOUNT | {"AWS_ENDPOINT_URL": server.endpoint}
            yield Served("s3://models/org/m", account, lambda: sum(server.sent.values()))


@asynccontextmanager
async def serving_artifact(contents: dict[str, bytes]) -> AsyncIterator[Served]:
    """A registry whose layers are files."""
    async with Registry() as registry:
        registry.push_files(contents)
        yield _serve(registry)


@asynccontextmanager
async def serving_image(contents: dict[str, bytes]) -> AsyncIterator[Served]:
    """A registry whose layers have files."""
    async with Registry() as registry:
        files: dict[str, bytes] = {f"models/{name}": content for name, content in contents.items()}
        names = sorted(files)
        halves = [{name: files[name] for name in half} for half in (names[::2], names[1::2])]
        registry.push([(make_tar({**half}), TAR, {}) for half in halves])
        yield _serve(registry)


def _serve(registry: Registry) -> Served:
    registry.token_uses = 20
    registry.blobs.bytes_per_second = BYTES_PER_SECOND
    nobody = {"DOCKER_CONFIG": "/nowhere"}
    return Served(f"{registry.uri}:v1", nobody, lambda: sum(registry.blobs.sent.values()))


@asynccontextmanager
async def serving_folder(contents: dict[str, bytes]) -> AsyncIterator[Served]:
    """A folder of a plain web server."""
    async with WebFolderServer(contents) as server:
        server.files.bytes_per_second = BYTES_PER_SECOND
        yield Served(server.uri, {}, lambda: sum(server.files.sent.values()))


SOURCES: dict[str, Serving] = {
    "hub": serving_hub,
    "s3": serving_s3,
    "oci artifact": serving_artifact,
    "oci image": serving_image,
    "web": serving_folder,
}


class Trial:
    """One folder, into which a model is fetched by processes that are killed."""

    def __init__(self, served: Served, folder: Path, wanted: Mapping[str, bytes], seed: int) -> None:
        self._served = served
        self._folder = folder
        self._wanted = {name: hashlib.sha256(content).hexdigest() for name, content in wanted.items()}
        self._draw = random.Random(seed)
        self.tale = Tale()

    async def run(self, num_kills: int) -> Tale:
        """Kill so often, and let the last one end."""
        while self.tale.num_kills < num_kills:
            process = await self._start()
            await self._kill(process)
            self._look()
        num_whole = self.tale.num_whole
        status, _, err = await finish(await self._start())
        self._look()
        if status != 0 or self.tale.num_whole == num_whole:
            self._blame(f"the last one ended with {status}, and the model is not whole: {err}")
        return self.tale

    async def _start(self) -> Process:
        environment = {"HF_HOME": str(self._folder.parent)} | self._served.environment
        flags = ("--connections", str(CONNECTIONS))
        return await start_fetch(self._served.uri, self._folder, *flags, prefix=(), **environment)

    async def _kill(self, process: Process) -> None:
        """Kill at a random moment after the process has begun to fetch: before, there is nothing to spoil."""
        assert process.stderr
        await process.stderr.readline()
        with suppress(TimeoutError):
            async with timeout(self._draw.random() * WINDOW_SECONDS):
                await process.wait()
        if process.returncode is None:
            process.kill()
            self.tale.num_kills += 1
        _, err = await process.communicate()
        if process.returncode not in (0, -9):
            self._blame(f"one ended with {process.returncode}: {err.decode()}")

    def _look(self) -> None:
        """Compare what has a name, and begin anew where the model is whole."""
        found = {name: hash_file(self._folder / name) for name in list_files(self._folder)}
        if bad := [name for name, digest in found.items() if self._wanted.get(name) != digest]:
            self._blame(f"not what was announced: {bad}")
        if not (self._folder / ".millrace" / "manifest.json").exists():
            return
        if found != self._wanted:
            self._blame(f"called whole without {set(self._wanted) - set(found)}")
        shutil.rmtree(self._folder)
        self.tale.num_whole += 1

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
