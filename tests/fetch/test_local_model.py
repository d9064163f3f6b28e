"""What a folder of this machine has, told as a source tells it."""

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millrace_fetch.cli import remote_model
from millrace_fetch.plan.selection import INDEX, WHOLE
from testing.checkpoints.models import MEDIUM, write_model
from testing.model_sources.processes import finish, start_command
from testing.model_sources.servers import WebFolderServer
from tests.fetch.conftest import Fetcher


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "model"
    found.mkdir()
    write_model(found, MEDIUM)
    (found / "README.md").write_text("nobody reads it")
    return found


async def look(uri: str, path: Path, *flags: str) -> tuple[int | None, str, str]:
    return await finish(await start_command(uri, "--resolve", str(path), *flags))


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def read_all(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


async def test_a_folder_is_told_like_a_source_and_has_no_revision(
    folder: Path, tmp_path: Path, fetcher: Fetcher
) -> None:
    path = tmp_path / "termination-log"
    status, out, err = await look(f"file://{folder}", path)
    assert (status, err) == (0, "")
    assert out.startswith(f"{folder} has a model: 3 files, ")
    async with WebFolderServer(read_all(folder)) as server:
        order = fetcher.order(server.uri)
        asked = await remote_model.resolve(order, fetcher.open_source(order), fetcher.witness.say)
    told = json.loads(asked.render())
    del told["revision"]
    assert read(path) == told
    assert told["facts"]["architecture"] == "LlamaForCausalLM"
    assert path.stat().st_size < 2000


@pytest.mark.parametrize(
    ("name", "words"), [("model.Q4.gguf", "GGUF"), (".model.safetensors.Xa1", "no *.safe")]
)
async def test_a_model_without_its_weights_is_an_error_as_somebody_may_be_copying_it(
    folder: Path, tmp_path: Path, name: str, words: str
) -> None:
    (folder / WHOLE).rename(folder / name)
    path = tmp_path / "told"
    status, _, said = await look(f"file://{folder}", path)
    assert status != 0
    assert "has no whole model" in said
    assert words in said
    assert not path.exists()


def remove_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def break_config(folder: Path) -> None:
    (folder / "config.json").write_text("<html>")


def break_modelopt(folder: Path) -> None:
    (folder / "hf_quant_config.json").write_text("[]")


def cut_weights(folder: Path) -> None:
    os.truncate(folder / WHOLE, 1000)


def lose_shard(folder: Path) -> None:
    (folder / WHOLE).unlink()
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))


def lose_target(folder: Path) -> None:
    (folder / WHOLE).unlink()
    (folder / WHOLE).symlink_to(folder / "gone")


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "no config.json": (remove_config, "holds no config.json: give the folder of a model"),
    "no JSON": (break_config, "config.json can't be read as JSON"),
    "no object": (break_modelopt, "hf_quant_config.json is no JSON object"),
    "cut weights": (cut_weights, "model.safetensors is no safetensors file that can be read"),
    "a shard that is absent": (
        lose_shard,
        "model-1.safetensors, which is not there: the model is incomplete",
    ),
    "a link to nothing": (lose_target, "model.safetensors can't be read: No such file or directory"),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_what_is_wrong_is_named(name: str, folder: Path, tmp_path: Path) -> None:
    change, words = BROKEN[name]
    change(folder)
    status, _, err = await look(f"file://{folder}", tmp_path / "told")
    assert status in (1, 3)
    assert err.startswith("millrace fetch: ")
    assert words in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "told").exists()


async def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """The system refuses so long a name, as it refuses a folder that is not for everybody."""
    folder = "/" + "x" * 300
    status, _, err = await look(f"file://{folder}", tmp_path / "told")
    assert status == 3
    assert err == f"millrace fetch: {folder}/config.json can't be read: File name too long\n"


async def test_a_file_that_cannot_be_written_is_named(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "absent" / "told"
    status, _, err = await look(f"file://{folder}", path)
    assert status == 3
    assert err == f"millrace fetch: {path} can't be written: No such file or directory\n"


@pytest.mark.parametrize(
    ("uri", "flags", "words"),
    [
        ("file://models/m", ("--resolve", "told"), "names no folder of this machine: write file:///folder"),
        ("file:///m", ("--resolve", "told", "--revision", "1"), "no revisions: leave --revision out"),
        ("file:///m", ("--to", "m"), "nothing to fetch: use the folder as it is"),
    ],
)
async def test_bad_usage_says_what_to_write(uri: str, flags: tuple[str, ...], words: str) -> None:
    status, _, err = await finish(await start_command(uri, *flags))
    assert status == 2
    assert words in err


async def test_a_volume_that_hangs_keeps_nobody_who_ends_it(folder: Path, tmp_path: Path) -> None:
    (folder / WHOLE).unlink()
    os.mkfifo(folder / WHOLE)  # whoever opens it waits for a writer
    process = await start_command(f"file://{folder}", "--resolve", str(tmp_path / "told"))
    await asyncio.sleep(2)
    process.terminate()
    status, _, err = await finish(process)
    assert status == 143, err
