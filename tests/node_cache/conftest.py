"""A node's disk, with models on it as `millrace fetch` leaves them, and an API server in memory."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from millrace_fetch.plan.manifest import FileRecord
from millrace_fetch.store.marker import Marker
from millrace_kubernetes.errors import ApiError
from millrace_node_cache.disk import Disk
from millrace_node_cache.models import ModelKey, Uses

MIB = 1 << 20


class Root:
    """The folder of the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def folder(self, key: ModelKey) -> Path:
        return self.path / key.namespace / "millrace" / key.folder

    def put(self, key: ModelKey, num_bytes: int = MIB, *, is_whole: bool = True) -> Path:
        folder = self.folder(key)
        (folder / ".millrace").mkdir(parents=True)
        (folder / ".millrace" / "lock").touch()
        (folder / "model.safetensors").write_bytes(b"\1" * num_bytes)
        if is_whole:
            marker = Marker("hf://org/m", "1", {"model.safetensors": FileRecord(num_bytes, "", None)})
            (folder / ".millrace" / "manifest.json").write_text(json.dumps(asdict(marker)))
        return folder

    def has(self, key: ModelKey) -> bool:
        return self.folder(key).exists()

    def rubbish(self) -> list[Path]:
        return list((self.path / ".millrace" / "going").iterdir())


class MemoryApi:
    """Pods and the Node's labels. A namespace in `refused` can't be listed."""

    def __init__(self) -> None:
        self.uses: dict[str, dict[str, int]] = {}
        self.labels: dict[str, str] = {"kubernetes.io/os": "linux"}
        self.refused: set[str] = set()
        self.num_writes = self.num_lists = 0

    async def list_uses(self, namespace: str) -> Uses:
        self.num_lists += 1
        if namespace in self.refused:
            raise ApiError(403, f"pods is forbidden in {namespace}")
        return dict(self.uses.get(namespace, {}))

    async def read_labels(self) -> dict[str, str]:
        if "nodes" in self.refused:
            raise ApiError(403, "nodes is forbidden")
        return dict(self.labels)

    async def change_labels(self, labels: dict[str, str | None]) -> None:
        self.num_writes += 1
        for name, value in labels.items():
            if value is None:
                del self.labels[name]
            else:
                self.labels[name] = value

    def use(self, key: ModelKey, num_bytes: int = 0) -> None:
        self.uses.setdefault(key.namespace, {})[key.name] = num_bytes


@pytest.fixture
def root(tmp_path: Path) -> Root:
    path = tmp_path / "disk"
    path.mkdir()
    return Root(path)


@pytest.fixture
def disk(root: Root) -> Disk:
    return Disk(root.path)


@contextmanager
def tidy_mode(path: Path) -> Iterator[None]:
    """Let pytest remove what nobody else may read."""
    try:
        yield
    finally:
        for folder, _, _ in os.walk(path):
            Path(folder).chmod(0o700)
