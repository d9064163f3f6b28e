"""Models' heads by ranges: from a Hub, from a web server, from a folder; and the command."""

import asyncio
import json
import os
import struct
import subprocess
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from millrace_fetch.cli.local_model import read_local_head
from millrace_fetch.cli.remote_model import fetch_head
from millrace_fetch.cli.size import main
from millrace_fetch.errors import CorruptError, FetchError, SourceError
from millrace_fetch.fetch import open_source
from millrace_fetch.plan.head import ModelHead
from millrace_fetch.plan.uri import HubModel, Order, parse_uri
from millrace_fetch.sources.hub import HubSource
from millrace_fetch.transfer.remote_file import FIRST_BYTES
from testing.checkpoints.models import MEDIUM, write_model
from testing.model_sources.servers import FakeHub, WebFolderServer, once
from tests.fetch.conftest import INDEX, SHARDS

MILLRACE = Path(sys.executable).with_name("millrace")
Contents = dict[str, bytes]


@pytest.fixture
def contents(tmp_path: Path) -> Contents:
    """A model in one file, which is larger than what is asked for at once."""
    folder = tmp_path / "whole"
    folder.mkdir()
    write_model(folder, MEDIUM)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def make_file(tensors: dict[str, int], numbers: bytes | None = None) -> bytes:
    """A safetensors file of so many float32 numbers by name."""
    entries, end = dict[str, Any](), 0
    for name, count in tensors.items():
        entries[name] = {"dtype": "F32", "shape": [count], "data_offsets": [end, end + 4 * count]}
        end += 4 * count
    header = json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header + (bytes(end) if numbers is None else numbers)


def sharded(first: dict[str, int], second: dict[str, int]) -> Contents:
    weight_map = dict.fromkeys(first, SHARDS[0]) | dict.fromkeys(second, SHARDS[1])
    return {
        "config.json": json.dumps(MEDIUM).encode(),
        "tokenizer.json": b"{}",
        INDEX: json.dumps({"weight_map": weight_map}).encode(),
        SHARDS[0]: make_file(first),
        SHARDS[1]: make_file(second),
    }


async def read(server: WebFolderServer) -> ModelHead:
    return await fetch_head(open_source(Order(parse_uri(server.uri), Path())), print)


async def test_a_head_comes_by_kilobytes(contents: Contents, tmp_path: Path) -> None:
    async with FakeHub(contents) as hub:
        head = await fetch_head(HubSource(HubModel("org/m"), hub.endpoint), print)
        assert sum(hub.large.sent.values()) == FIRST_BYTES
        assert hub.large.requests == [("GET", "model.safetensors")]
        assert head.revision == hub.commit
    assert head.tensors == read_local_head(tmp_path / "whole").tensors
    assert head.num_bytes == len(contents["model.safetensors"])


async def test_all_shards_are_read_each_to_the_end_of_its_header() -> None:
    first, second = {f"{'a' * 200}{n}": 1 for n in range(2000)}, {"b": 3}
    contents = sharded(first, second)
    assert len(contents[SHARDS[0]]) > 3 * FIRST_BYTES
    async with WebFolderServer(contents) as server:
        head = await read(server)
        asked = [name for method, name in server.files.requests if method == "GET" and name in SHARDS]
        assert sorted(asked) == [SHARDS[0], *SHARDS], "a second request where the first bytes are too few"
    assert head.tensors.keys() == first.keys() | second.keys()
    assert head.tensors["b"].shape == (3,)


@pytest.mark.parametrize("knob", ["allows_head", "has_ranges"])
async def test_a_server_that_can_do_less_serves_small_files(knob: str) -> None:
    async with WebFolderServer(sharded({"a": 1}, {"b": 3})) as server:
        setattr(server.files, knob, False)
        assert (await read(server)).tensors.keys() == {"a", "b"}


async def test_without_ranges_a_large_file_is_not_read(contents: Contents) -> None:
    async with WebFolderServer(contents) as server:
        server.files.has_ranges = False
        with pytest.raises(SourceError, match=r"sends model\.safetensors only whole"):
            await read(server)


async def test_a_broken_connection_is_tried_again(contents: Contents) -> None:
    async with WebFolderServer(contents) as server:
        server.files.cuts["model.safetensors"] = 2
        assert len((await read(server)).tensors) > 20
        server.files.faults.append(once(lambda: web.Response(status=503)))
        assert len((await read(server)).tensors) > 20


CORRUPT: dict[str, tuple[Contents, str]] = {
    "a length beyond the file": ({SHARDS[0]: struct.pack("<Q", 5000) + b"{}"}, "it is cut short"),
    "a malicious length": ({SHARDS[0]: struct.pack("<Q", 1 << 62) + b"{}"}, "the limit is 100000000"),
    "no header": ({SHARDS[0]: b"<html>what?</html>"}, "no safetensors file that can be read"),
    "an empty file": ({SHARDS[0]: b""}, "too few"),
    "missing numbers": ({SHARDS[0]: make_file({"a": 4}, b"1234")}, "it is cut short"),
    "a tensor twice": ({SHARDS[0]: make_file({"b": 1})}, "holds the tensor b, and so does another file"),
    "no config": ({"config.json": b"[1]"}, "is no JSON object"),
}


@pytest.mark.parametrize("name", CORRUPT)
async def test_files_that_are_damaged_are_refused(name: str, tmp_path: Path) -> None:
    change, words = CORRUPT[name]
    contents = sharded({"a": 1}, {"b": 3}) | change
    async with WebFolderServer(contents) as server:
        with pytest.raises(FetchError, match=words):
            await read(server)
    for file, content in contents.items():
        (tmp_path / file).write_bytes(content)
    with pytest.raises(CorruptError, match=words):
        read_local_head(tmp_path)


def size(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([MILLRACE, "size", *arguments], capture_output=True, text=True, check=False)


@pytest.mark.usefixtures("contents")
def test_the_exit_status_says_whether_it_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "whole")
    assert main([folder]) == 0
    assert main([f"file://{folder}", "--accelerator", "h100-80g"]) == 0
    assert "Fits: " in capsys.readouterr().out
    assert main([folder, "--memory", "100MiB"]) == 1
    assert "Does not fit: " in capsys.readouterr().out
    assert main([folder, "--accelerator", "cpu", "--memory", "2Gi", "--weights", "Int8", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)["accelerators"][0]
    assert (answer["name"], answer["answer"]) == ("a pod on CPUs", "Fits")
    assert main([folder, "--accelerator", "cpu", "--memory", "2Gi", "--kv-cache", "Fp8"]) == 1
    assert "write --kv-cache Int8" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pvc://claim/m"], "pvc://claim/m is a claim in a cluster"),
        (["org/name"], "'org/name' is no folder here: write a folder's path, or hf://org/name"),
        ([".", "--accelerator", "h1000"], "'h1000' is not known: write one of h100-80g"),
        ([".", "--accelerator", "cpu"], "--accelerator cpu needs --memory"),
        ([".", "--memory", "much"], "--memory: 'much' is no amount of memory"),
        ([".", "--memory", "8Gi", "--accelerator", "l4-24g"], "leave it out with l4-24g"),
    ],
)
def test_bad_usage_says_what_to_write(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


def test_other_formats_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MEDIUM))
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    (tmp_path / "model.Q4.gguf").write_bytes(b"GGUF")
    assert main([str(tmp_path)]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "Not served: there are no *.safetensors" in out
    named = "There are GGUF (model.Q4.gguf) and pickled weights of torch (pytorch_model.bin)."
    assert named in out


@pytest.mark.usefixtures("contents")
def test_a_folder_needs_neither_torch_nor_a_client(tmp_path: Path) -> None:
    code = (
        "import sys; from millrace_fetch.cli.size import main; main([sys.argv[1]]);"
        "heavy = {'torch', 'aiohttp', 'huggingface_hub', 'pydantic'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "whole")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


async def test_the_real_command_asks_a_hub(contents: Contents, tmp_path: Path) -> None:
    async with FakeHub(contents) as hub:
        environment = os.environ | {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path)}
        command = [str(MILLRACE), "size", "hf://org/m", "--accelerator", "l4"]
        process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=PIPE, stderr=PIPE)
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    lines = out.decode().splitlines()
    assert lines[0] == f"hf://org/m at {hub.commit[:12]}"
    assert lines[-1].startswith(("Fits: ", "time."))


async def test_what_is_secret_in_a_url_is_not_printed(
    contents: Contents, capsys: pytest.CaptureFixture[str]
) -> None:
    async with WebFolderServer(contents) as server:
        uri = f"{server.uri}?signature=secret".replace("://", "://me:secret@")
        run: Callable[[list[str]], int] = main
        assert await asyncio.to_thread(run, [uri]) == 0
    assert "secret" not in capsys.readouterr().out
