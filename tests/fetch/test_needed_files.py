"""What a replica needs beside its weights, and which weights it reads: refused or chosen before a fetch."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millrace_fetch.cli import remote_model
from millrace_fetch.cli.local_model import read_local_head, resolve_folder
from millrace_fetch.cli.size import main
from millrace_fetch.errors import SourceError
from millrace_fetch.plan.head import Resolved, describe_head
from millrace_fit.files.needed import INDEX, MODELOPT, WHOLE, choose_weights, explain_choice, list_small
from millrace_fit.shard import whole
from millrace_runtime.execution.weights.safetensors_files import Reader
from testing.checkpoints.models import MEDIUM, write_model
from testing.model_sources.registry import TAR, Registry, make_tar
from testing.model_sources.servers import FakeHub, WebFolderServer

Contents = dict[str, bytes]
URI = "hf://org/m"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Contents:
    folder = write_model(tmp_path_factory.mktemp("model"), MEDIUM)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def without(name: str, **others: bytes) -> Callable[[Contents], Contents]:
    more = {other.replace("__", "."): content for other, content in others.items()}
    return lambda model: {kept: model[kept] for kept in model if kept != name} | more


def pointing(name: str) -> Callable[[Contents], Contents]:
    return lambda model: model | {name: POINTER}


def adding(name: str, content: Any) -> Callable[[Contents], Contents]:
    return lambda model: model | {name: json.dumps(content).encode()}


def pointing_index(model: Contents) -> Contents:
    return without(WHOLE)(model) | {INDEX: POINTER, "model-1.safetensors": model[WHOLE]}


UNFIT: dict[str, tuple[Callable[[Contents], Contents], str]] = {
    "no tokenizer": (without("tokenizer.json"), "there is no tokenizer.json, and .*: put the model's own"),
    "SentencePiece's": (
        without("tokenizer.json", tokenizer__model=b"spm"),
        r"there is no tokenizer\.json.* Convert tokenizer\.model with transformers: AutoTokenizer",
    ),
    "a tokenizer's pointer": (pointing("tokenizer.json"), r"^tokenizer\.json is a pointer of Git LFS.* pull"),
    "a config's pointer": (pointing("config.json"), r"^config\.json is a pointer of Git LFS"),
    "the weights' pointer": (pointing(WHOLE), r"^model\.safetensors is a pointer of Git LFS"),
    "ModelOpt's pointer": (pointing(MODELOPT), r"^hf_quant_config\.json is a pointer of Git LFS"),
    "ModelOpt's own file": (adding(MODELOPT, {"quantization": {"quant_algo": "NVFP4"}}), "algo 'NVFP4'"),
    "an index's pointer": (pointing_index, r"^model\.safetensors\.index\.json is a pointer of Git LFS"),
}


async def ask(fetcher: Any, uri: str) -> Resolved:
    order = fetcher.order(uri)
    return await remote_model.resolve(order, fetcher.open_source(order), fetcher.witness.say)


def check(found: Resolved, words: str) -> None:
    assert found.facts is not None
    assert found.facts.fault is not None
    assert re.search(words, found.facts.fault), found.facts.fault
    assert len(found.render().encode()) < 2000


@pytest.fixture
def contents(model: Contents) -> Contents:
    return dict(model)


@pytest.mark.parametrize("name", UNFIT)
async def test_a_model_that_no_replica_can_use_is_refused_by_every_look(
    name: str, model: Contents, hub: FakeHub, fetcher: Any, *, registry: Registry, tmp_path: Path
) -> None:
    change, words = UNFIT[name]
    contents = change(model)
    hub.become("2" * 40, contents)
    check(await ask(fetcher, URI), words)
    hub.has_hashes = False
    check(await ask(fetcher, URI), words)
    async with WebFolderServer(contents) as server:
        check(await ask(fetcher, server.uri), words)
    registry.push_files(contents)
    check(await ask(fetcher, f"{registry.uri}:v1"), words)
    entries = {f"models/{file}": content for file, content in contents.items()}
    registry.push([(make_tar(entries), TAR, {})])
    check(await ask(fetcher, f"{registry.uri}:v1"), words)
    for file, content in contents.items():
        (tmp_path / file).write_bytes(content)
    check(Resolved(None, 0, None, describe_head(read_local_head(tmp_path))), words)


async def test_in_a_folder_that_somebody_may_be_filling_only_a_pointer_is_a_refusal(
    model: Contents, tmp_path: Path
) -> None:
    for file, content in (model | {"tokenizer.json": POINTER}).items():
        (tmp_path / file).write_bytes(content)
    assert "that no replica can serve: tokenizer.json is a pointer" in resolve_folder(
        tmp_path, tmp_path / "found"
    )
    assert "is a pointer" in json.loads((tmp_path / "found").read_text())["facts"]["fault"]
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(SourceError, match=r"has no whole model: there is no tokenizer\.json"):
        resolve_folder(tmp_path, tmp_path / "found")


def test_size_says_what_is_missing(
    model: Contents, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file, content in (without("tokenizer.json")(model) | {"tekken.json": b"{}"}).items():
        (tmp_path / file).write_bytes(content)
    assert main([str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "LlamaForCausalLM; sequences of up to 1,024 tokens" in out, "nothing of weights that were not read"
    said = " ".join(out.split())
    assert "Not served: there is no tokenizer.json, and replicas read no other tokenizer. tekken.json" in said


async def test_the_usual_file_counts_before_an_index_everywhere_and_is_named(
    model: Contents,
    hub: FakeHub,
    fetcher: Any,
    *,
    registry: Registry,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The index names another model, of which one file is there."""
    index = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "gone.safetensors"}}).encode()
    contents = model | {INDEX: index, "model-1.safetensors": b"other"}
    choice = "model.safetensors is read, and not the files of model.safetensors.index.json beside it"
    hub.become("2" * 40, contents)
    entries = {f"models/{file}": content for file, content in contents.items()}
    registry.push([(make_tar(entries), TAR, {})])
    async with WebFolderServer(contents) as server:
        for uri in (URI, server.uri, f"{registry.uri}:v1"):
            fetcher.folder, fetcher.witness.said = tmp_path / str(hash(uri)), []
            found = await ask(fetcher, uri)
            assert found.facts is not None
            assert found.facts.fault is None
            assert found.num_files == len(model)
            await fetcher.fetch(uri)
            fetcher.check(contents, list(model))
            assert [choice in text for text in fetcher.witness.said] == [True, True]
    folder = tmp_path / "local"
    folder.mkdir()
    for file, content in contents.items():
        (folder / file).write_bytes(content)
    assert "has a model: 3 files" in resolve_folder(folder, tmp_path / "found")
    assert choice in capsys.readouterr().err
    assert main([str(folder)]) == 0
    assert choice in capsys.readouterr().err
    reader = Reader(folder)
    assert choice in (reader.choice or "")
    reader.read("model.norm.weight", whole(MEDIUM["hidden_size"]))


@pytest.mark.parametrize(
    ("names", "shards", "chosen"),
    [
        ([WHOLE, INDEX, "a.safetensors"], None, [WHOLE]),
        ([INDEX, "b.safetensors", "a.safetensors"], ["b.safetensors"], ["b.safetensors"]),
        (["b.safetensors", "a.safetensors", "c/d.safetensors"], None, ["a.safetensors", "b.safetensors"]),
        (["consolidated.safetensors", "a.safetensors"], None, ["a.safetensors"]),
        (["consolidated.00.safetensors"], None, ["consolidated.00.safetensors"]),
        (["pytorch_model.bin"], None, []),
    ],
)
def test_the_weights_are_chosen_as_transformers_does(
    names: list[str], shards: list[str] | None, chosen: list[str]
) -> None:
    assert choose_weights(names, shards) == chosen
    assert (explain_choice(names) is None) == (not {WHOLE, INDEX} <= set(names))


async def test_all_files_of_text_come_that_a_replica_reads(model: Contents, fetcher: Any) -> None:
    """A web server lists nothing: of its templates the one for tools is asked for."""
    names = ["added_tokens.json", "special_tokens_map.json", "additional_chat_templates/tool_use.jinja"]
    contents = model | dict.fromkeys(names, b"{}")
    others = ["additional_chat_templates/rag.jinja", "x/c.jinja", "added_tokens.json.old"]
    assert list_small([*contents, *others]) == [
        *("config.json", "tokenizer.json", "special_tokens_map.json", "added_tokens.json"),
        *("additional_chat_templates/rag.jinja", "additional_chat_templates/tool_use.jinja"),
    ]
    async with WebFolderServer(contents) as server:
        found = await ask(fetcher, server.uri)
        await fetcher.fetch(server.uri)
    fetcher.check(contents, list(contents))
    assert found.num_files == len(contents)
    assert "has a model: 6 files" in resolve_folder(fetcher.folder, fetcher.folder.parent / "found")
