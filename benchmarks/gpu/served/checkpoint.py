"""A checkpoint with random weights, drawn on the device and written to memory by several threads.

The files are mapped, and each tensor is copied into its place: 16 GB take seconds.
"""

import json
import shutil
import time
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.gpu.weights import BASE, LLAMA_8B
from millrace_fit.families.registry import declare
from millrace_fit.tensors import list_needed

NUM_FILES = 8
PIECE_BYTES = 8 << 20
BF16_BYTES = 2
SERVED = {"model_type": "llama", "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 0}
"""What a config.json has beside the shape."""
LLAMA_8B_SERVED = LLAMA_8B | SERVED
TINY_SERVED = (
    BASE
    | SERVED
    | {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
    }
)
"""For a dry run: its vocabulary has all bytes."""


class Stored(NamedTuple):
    """A tensor and its place among the bytes of a file."""

    name: str
    shape: tuple[int, ...]
    begin: int
    end: int


def write_checkpoint(folder: Path, config: Mapping[str, Any], device: torch.device) -> int:
    """Write config, tokenizer and weights. Return the bytes of the weights."""
    from benchmarks.runtime.models.checkpoint import TOKENIZER_CONFIG, build_tokenizer  # noqa: PLC0415  tokenizers

    folder.mkdir(parents=True)
    build_tokenizer(config["vocab_size"]).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG))
    (folder / "config.json").write_text(json.dumps(dict(config)))
    return write_weights(folder, config, device)


def time_reading(folder: Path) -> float:
    """Return the seconds in which all files of the weights can be read once, by a thread for each."""
    files = sorted(folder.glob("*.safetensors"))
    began = time.perf_counter()
    with ThreadPoolExecutor(len(files)) as pool:
        list(pool.map(_read, files))
    return time.perf_counter() - began


def _read(path: Path) -> None:
    piece = bytearray(PIECE_BYTES)
    with path.open("rb", buffering=0) as file:
        while file.readinto(piece):
            pass


def write_weights(folder: Path, config: Mapping[str, Any], device: torch.device) -> int:
    """Write the weights' files and their index. Return their bytes. Raises OSError without room."""
    needed = [(one.name, one.part.shapes[0]) for one in list_needed(declare(config))]
    files = plan_files(needed, NUM_FILES)
    num_bytes = sum(tensors[-1].end for tensors in files.values())
    if (free := shutil.disk_usage(folder).free) < num_bytes:
        raise OSError(f"{folder} has {free} bytes free and the weights take {num_bytes}: make room there")
    with ThreadPoolExecutor(len(files)) as pool:
        list(pool.map(lambda file: _write_file(folder / file[0], file[1], device), files.items()))
    weight_map = {tensor.name: file for file, tensors in files.items() for tensor in tensors}
    index = {"metadata": {"total_size": num_bytes}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return num_bytes


def plan_files(tensors: Sequence[tuple[str, tuple[int, ...]]], num_files: int) -> dict[str, list[Stored]]:
    """Return the tensors of each file, in their order. Files are about equally large, and none is empty."""
    total = sum(_count_bytes(shape) for _, shape in tensors)
    groups: dict[int, list[Stored]] = {}
    before = 0
    for name, shape in tensors:
        size, group = _count_bytes(shape), groups.setdefault(before * num_files // total, [])
        begin = group[-1].end if group else 0
        group.append(Stored(name, shape, begin, begin + size))
        before += size
    return {
        f"model-{number:05d}-of-{len(groups):05d}.safetensors": group
        for number, group in enumerate(groups.values(), 1)
    }


def _count_bytes(shape: Sequence[int]) -> int:
    return BF16_BYTES * torch.Size(shape).numel()


def render_header(tensors: Sequence[Stored]) -> bytes:
    """Return the beginning of a safetensors file: its length and JSON, filled up to a multiple of eight."""
    entries = {
        one.name: {"dtype": "BF16", "shape": one.shape, "data_offsets": (one.begin, one.end)}
        for one in tensors
    }
    text = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _write_file(path: Path, tensors: Sequence[Stored], device: torch.device) -> None:
    header = render_header(tensors)
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + tensors[-1].end)
    mapped = torch.from_file(str(path), shared=True, size=path.stat().st_size, dtype=torch.uint8)
    values = mapped[len(header) :].view(torch.bfloat16)
    with _open_stream(device):
        for one in tensors:
            place = values[one.begin // BF16_BYTES : one.end // BF16_BYTES]
            place.copy_(_draw(one.name, one.shape, device).flatten())


def _open_stream(device: torch.device) -> AbstractContextManager[Any]:
    """Return a stream for this thread: on a common one, threads would wait for each other's copies."""
    if device.type != "cuda":
        return nullcontext()
    return torch.cuda.stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]


def _draw(name: str, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Return what the name decides: outputs are as large as inputs, and logits have a spread of two."""
    generator = torch.Generator(device).manual_seed(zlib.crc32(name.encode()))
    drawn = torch.empty(shape, dtype=torch.bfloat16, device=device).normal_(generator=generator)
    if len(shape) == 1:
        return drawn.mul_(0.1).add_(1)
    scale = 2.0 if name == "lm_head.weight" else 1.0
    return drawn.mul_(scale * float(shape[1]) ** -0.5)
