import json
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from botocore.loaders import create_loader

from development.ports import holding_port
from millrace_fetch import fetch
from millrace_fetch.fetch import Outcome
from millrace_fetch.plan.uri import HubModel, Order, parse_uri
from millrace_fetch.sources.hub import HubSource
from millrace_fetch.sources.source import Source
from testing.model_sources.registry import Registry
from testing.model_sources.servers import FakeHub, WebFolderServer
from tests.fetch.certificates import certify

SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
INDEX = "model.safetensors.index.json"


def make_model(shard_bytes: int = 100_000) -> dict[str, bytes]:
    """A model's files, with others beside them that no replica reads."""
    draw = random.Random(7)
    weight_map = {"a": SHARDS[0], "b": SHARDS[1]}
    return {
        "config.json": b'{"model_type": "llama"}',
        "generation_config.json": b"{}",
        "tokenizer.json": draw.randbytes(5000),
        "tokenizer_config.json": b'{"a": 1}',
        "chat_template.jinja": b"{{ messages }}",
        INDEX: json.dumps({"weight_map": weight_map}).encode(),
        SHARDS[0]: draw.randbytes(shard_bytes),
        SHARDS[1]: draw.randbytes(shard_bytes + 1),
        "consolidated.safetensors": b"twice",
        "original/model.safetensors": b"twice",
        "pytorch_model.bin": b"pickle",
        "modeling.py": b"code",
        "README.md": b"words",
        "LICENSE": b"law",
    }


NEEDED = [*list(make_model(1))[:8]]
SERVICES = create_loader()
"""What botocore knows of AWS. It would read that anew, in 180 ms, for each bucket."""


class Witness:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.total: int | None = 0
        self.done = 0

    def begin(self, total_bytes: int | None, done_bytes: int) -> None:
        self.total, self.done = total_bytes, done_bytes

    def advance(self, num_bytes: int) -> None:
        self.done += num_bytes

    def say(self, text: str) -> None:
        self.said.append(text)


class Fetcher:
    """Fetches in this process, from a fake Hub where the URI is of one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.witness = Witness()
        self.endpoint = ""

    async def fetch(self, uri: str) -> Outcome:
        return await self.fetch_order(self.order(uri))

    def order(self, uri: str) -> Order:
        return Order(parse_uri(uri), self.folder, connections=4)

    async def fetch_order(self, order: Order) -> Outcome:
        return await fetch.fetch(order, self.open_source(order), self.witness)

    def hub_source(self) -> Source:
        return HubSource(HubModel("org/m"), self.endpoint)

    def open_source(self, order: Order) -> Source:
        if isinstance(order.uri, HubModel):
            return HubSource(order.uri, self.endpoint)
        return fetch.open_source(order)

    def names(self) -> list[str]:
        found = (path for path in self.folder.rglob("*") if path.is_file())
        names = (path.relative_to(self.folder).as_posix() for path in found)
        return sorted(name for name in names if not name.startswith(".millrace/"))

    def is_marked(self) -> bool:
        return (self.folder / ".millrace" / "manifest.json").exists()

    def check(self, contents: dict[str, bytes], names: list[str] = NEEDED) -> None:
        """The folder has these files, whole, and no other."""
        assert self.names() == sorted(names)
        assert all((self.folder / name).read_bytes() == contents[name] for name in names)
        assert self.is_marked()


@pytest.fixture(scope="session")
def certificate_of_nobody(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What clients trust here instead of the system's authorities: each would read those anew, in 60 ms."""
    return certify(tmp_path_factory.mktemp("nobody"), "nobody")[0]


@pytest.fixture(autouse=True)
def _quick_and_anonymous(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, certificate_of_nobody: Path
) -> None:
    monkeypatch.setattr("millrace_fetch.transfer.retry._FIRST_SECONDS", 0.01)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate_of_nobody))
    monkeypatch.setattr("botocore.session.create_loader", lambda *_: SERVICES)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))


@pytest.fixture
def free_port() -> Iterator[int]:
    with holding_port() as port:
        yield port


@pytest.fixture
def fetcher(tmp_path: Path) -> Fetcher:
    return Fetcher(tmp_path / "model")


@pytest.fixture
def contents() -> dict[str, bytes]:
    """What the servers have."""
    return make_model()


@pytest.fixture
async def folder_server(contents: dict[str, bytes]) -> AsyncIterator[WebFolderServer]:
    async with WebFolderServer(contents) as server:
        yield server


@pytest.fixture
async def hub(fetcher: Fetcher, contents: dict[str, bytes]) -> AsyncIterator[FakeHub]:
    async with FakeHub(contents) as hub:
        fetcher.endpoint = hub.endpoint
        yield hub


@pytest.fixture
async def registry(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Registry]:
    """A registry without anything in it, asked without credentials."""
    monkeypatch.setenv("DOCKER_CONFIG", "/nowhere")
    async with Registry() as registry:
        yield registry
