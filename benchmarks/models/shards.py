"""The model that is fetched: random bytes in safetensors shards, whose hashes are known."""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

NUM_SHARDS = 4
INDEX = "model.safetensors.index.json"
_PIECE_BYTES = 16 << 20


@dataclass(frozen=True)
class StoredModel:
    """A folder of a model's files."""

    folder: Path
    sha256: dict[str, str]
    """Of each file, by its name."""

    @property
    def num_bytes(self) -> int:
        """Of all files."""
        return sum((self.folder / name).stat().st_size for name in self.sha256)


def write_model(folder: Path, num_bytes: int) -> StoredModel:
    """Write config, index and shards that have `num_bytes` of weights together."""
    folder.mkdir()
    shards = [f"model-{number:05}-of-{NUM_SHARDS:05}.safetensors" for number in range(1, NUM_SHARDS + 1)]
    index = {"weight_map": {f"weights.{number}": name for number, name in enumerate(shards)}}
    small = {"config.json": {"model_type": "llama"}, INDEX: index}
    for name, fields in small.items():
        (folder / name).write_text(json.dumps(fields))
    for number, name in enumerate(shards):
        _write_shard(folder / name, f"weights.{number}", num_bytes // NUM_SHARDS)
    return StoredModel(folder, {name: hash_file(folder / name) for name in [*small, *shards]})


def _write_shard(path: Path, tensor: str, num_bytes: int) -> None:
    header = json.dumps({tensor: {"dtype": "U8", "shape": [num_bytes], "data_offsets": [0, num_bytes]}})
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header.encode())
        for start in range(0, num_bytes, _PIECE_BYTES):
            file.write(os.urandom(min(_PIECE_BYTES, num_bytes - start)))


def hash_file(path: Path) -> str:
    """Return a file's SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find_wrong(model: StoredModel, folder: Path) -> list[str]:
    """Return the names of the model's files that a folder has not, or not alike."""
    return [
        name
        for name, digest in model.sha256.items()
        if not (folder / name).is_file() or hash_file(folder / name) != digest
    ]
