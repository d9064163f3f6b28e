"""Images of which parts are read before anything is fetched."""

import asyncio
import gzip
import json
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from millrace_fetch.cli import remote_model
from millrace_fetch.cli.local_model import read_local_head
from millrace_fetch.cli.remote_model import fetch_head
from millrace_fetch.cli.size import main
from millrace_fetch.errors import CorruptError, FetchError, SourceError, UnsafeNameError
from millrace_fetch.image import look as image_look
from millrace_fetch.image import tarball
from millrace_fetch.plan.head import Resolved
from millrace_fetch.transfer.remote_file import FIRST_BYTES
from millrace_fit.facts import find_facts
from testing.checkpoints.models import MEDIUM, stored_of
from testing.model_sources.processes import finish, start_command, until
from testing.model_sources.registry import TAR, Entries, Registry, make_link, make_tar
from testing.model_sources.servers import once
from tests.fetch.bombs import BOMBS
from tests.fetch.conftest import INDEX, SHARDS, Fetcher

Pack = Callable[[bytes], bytes]
PACKS: dict[str, Pack] = {"gzip": lambda content: gzip.compress(content, 1), "zstd": tarball.zstd.compress}
GEMMA = MEDIUM | {"architectures": ["GemmaForCausalLM"]}
NAMES = sorted(stored_of(MEDIUM))
NUM_NUMBERS = sum(tensor.num_numbers for tensor in stored_of(MEDIUM).values())
SHARD_BYTES = NUM_NUMBERS  # half of the model's, in numbers of two bytes
RANDOM = random.Random(7).randbytes(4 * SHARD_BYTES)  # nothing makes it smaller


def make_weights(names: list[str], dtype: str = "BF16") -> bytes:
    """A file of these tensors of the model."""
    stored, entries, end = stored_of(MEDIUM), dict[str, Any](), 0
    for name in names:
        begin, end = end, end + stored[name].num_numbers * (1 if dtype.startswith("F8") else 2)
        entries[name] = {"dtype": dtype, "shape": stored[name].shape, "data_offsets": [begin, end]}
    header = json.dumps(entries).encode()
    return len(header).to_bytes(8, "little") + header + RANDOM[:end]


def make_entries(config: dict[str, Any] = MEDIUM, *, dtype: str = "BF16") -> dict[str, bytes]:
    """The files below /models, in the order that a builder of images puts them: by name."""
    half = len(NAMES) // 2
    weight_map = dict.fromkeys(NAMES[:half], SHARDS[0]) | dict.fromkeys(NAMES[half:], SHARDS[1])
    contents = {
        "config.json": json.dumps(config).encode(),
        SHARDS[0]: make_weights(NAMES[:half], dtype),
        SHARDS[1]: make_weights(NAMES[half:], dtype),
        INDEX: json.dumps({"weight_map": weight_map}).encode(),
        "tokenizer.json": b"{}",
    }
    return {f"models/{name}": content for name, content in contents.items()}


BASE: Entries = {"etc/passwd": b"root", "bin/sh": make_link("/bin/busybox")}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> int:
    """Let a look bring less than the model."""
    monkeypatch.setattr(tarball, "MAX_FETCHED_BYTES", 300_000)
    return 300_000


def push(registry: Registry, *layers: Entries | bytes) -> None:
    """Put an image there, of files or of ready layers; the lowest comes first."""
    blobs = [layer if isinstance(layer, bytes) else make_tar(layer) for layer in layers]
    registry.push([(blob, TAR, {}) for blob in blobs])


async def look(fetcher: Fetcher, registry: Registry) -> Resolved:
    order = fetcher.order(f"{registry.uri}:v1")
    found = await remote_model.resolve(order, fetcher.open_source(order), fetcher.witness.say)
    assert not fetcher.folder.exists()
    return found


def count_sent(registry: Registry) -> int:
    return sum(registry.blobs.sent.values())


async def test_of_a_plain_layer_the_headers_alone_are_sent(fetcher: Fetcher, registry: Registry) -> None:
    entries = make_entries()
    push(registry, BASE, entries)
    found = await look(fetcher, registry)
    assert found.facts == find_facts(MEDIUM, stored_of(MEDIUM))
    assert found.facts.fault is None
    layers_bytes = sum(len(layer) for layer in registry.blobs.contents.values())
    assert found.num_files == len(entries)
    assert found.num_bytes == layers_bytes + sum(map(len, entries.values()))
    assert count_sent(registry) < 5 * FIRST_BYTES < layers_bytes / 5


async def test_the_head_is_that_of_the_same_files_in_a_folder(
    fetcher: Fetcher, registry: Registry, tmp_path: Path
) -> None:
    for path, content in make_entries().items():
        (tmp_path / Path(path).name).write_bytes(content)
    push(registry, make_entries())
    order = fetcher.order(f"{registry.uri}:v1")
    head = await fetch_head(fetcher.open_source(order), print)
    local = read_local_head(tmp_path)
    assert (head.config, head.tensors, head.names) == (local.config, local.tensors, local.names)
    assert (head.num_bytes, head.is_whole) == (local.num_bytes, True)


@pytest.mark.parametrize("pack", PACKS)
async def test_a_compressed_layer_that_is_small_is_seen_whole(
    fetcher: Fetcher, registry: Registry, pack: str
) -> None:
    entries = make_entries()
    push(registry, BASE, PACKS[pack](make_tar(entries)))
    found = await look(fetcher, registry)
    assert found.facts == find_facts(MEDIUM, stored_of(MEDIUM))
    assert found.num_files == len(entries)
    assert len(registry.blobs.ranges) < 12, "few requests where there are no jumps"


@pytest.mark.parametrize("pack", PACKS)
async def test_a_large_compressed_layer_is_read_until_the_shape_is_known(
    fetcher: Fetcher, registry: Registry, pack: str, small: int
) -> None:
    push(registry, BASE, PACKS[pack](make_tar(make_entries(MEDIUM | {"dtype": "float32"}))))
    found = await look(fetcher, registry)
    assert found.facts.fault is None
    assert found.facts.stored == {"BF16": NUM_NUMBERS}, "as the first shard has them"
    assert count_sent(registry) < small


@pytest.mark.parametrize("pack", PACKS)
async def test_nothing_is_known_where_config_json_comes_after_the_weights(
    fetcher: Fetcher, registry: Registry, pack: str, small: int
) -> None:
    push(registry, BASE, PACKS[pack](make_tar(dict(reversed(make_entries().items())))))
    found = await look(fetcher, registry)
    assert found.facts is None
    assert found.num_files == 2
    assert count_sent(registry) <= small + 1
    assert fetcher.witness.said == [
        "config.json is not near the start of a layer: nothing is known of the model until it is fetched"
    ]


@pytest.mark.usefixtures("small")
async def test_without_a_type_nothing_is_said_of_the_size(fetcher: Fetcher, registry: Registry) -> None:
    untyped = {name: value for name, value in MEDIUM.items() if name != "dtype"}
    for config, is_known in ((untyped, False), (MEDIUM, True)):
        files = {"models/config.json": json.dumps(config).encode(), "models/large.bin": RANDOM}
        push(registry, gzip.compress(make_tar(files), 1))
        found = await look(fetcher, registry)
        assert (found.facts is not None) == is_known


@pytest.mark.usefixtures("small")
async def test_a_file_that_a_replica_may_not_read_counts_for_nothing(
    fetcher: Fetcher, registry: Registry
) -> None:
    """Behind what was seen there may be a model.safetensors, beside which no other file is read."""
    entries = make_entries()
    config = {"models/config.json": entries.pop("models/config.json")}
    for content in (b"no header of such a file", make_weights(["model.norm.weight"], "F8_E4M3")):
        other = {"models/adapter.safetensors": content}
        push(registry, gzip.compress(make_tar(config | other | entries), 1))
        found = await look(fetcher, registry)
        assert found.facts.fault is None
        assert found.facts.stored == {"BF16": NUM_NUMBERS}


async def test_weights_in_layers_of_their_own_are_below_their_config(
    fetcher: Fetcher, registry: Registry, small: int
) -> None:
    entries = make_entries()
    config, weights = "models/config.json", f"models/{SHARDS[0]}"
    push(registry, gzip.compress(make_tar({weights: entries[weights]}), 1), {config: entries[config]})
    found = await look(fetcher, registry)
    assert found.facts.fault is None, "nobody says that the rest is missing"
    assert count_sent(registry) < small


@pytest.mark.usefixtures("small")
async def test_what_an_upper_layer_hides_does_not_count(fetcher: Fetcher, registry: Registry) -> None:
    packed = gzip.compress(make_tar(make_entries(GEMMA)), 1)
    for hidden in ("models/.wh.config.json", ".wh.models", "models/.wh..wh..opq"):
        push(registry, packed, {hidden: b""})
        assert (await look(fetcher, registry)).facts is None
    push(registry, packed, {"models/config.json": json.dumps(MEDIUM).encode()})
    assert (await look(fetcher, registry)).facts.architecture == "LlamaForCausalLM"


@pytest.mark.usefixtures("small")
async def test_below_a_layer_that_was_not_seen_whole_nothing_counts(
    fetcher: Fetcher, registry: Registry
) -> None:
    push(registry, make_entries(GEMMA), gzip.compress(make_tar({"models/large.bin": RANDOM}), 1))
    assert (await look(fetcher, registry)).facts is None
    lowest = next(iter(registry.blobs.contents))
    assert registry.blobs.sent[lowest] <= 1, "the byte that asks for ranges"


async def test_a_model_whose_config_is_hidden_is_incomplete(fetcher: Fetcher, registry: Registry) -> None:
    push(registry, make_entries(), {"models/.wh.config.json": b""})
    with pytest.raises(SourceError, match=r"there is no config\.json"):
        await look(fetcher, registry)


@pytest.mark.parametrize("is_packed", [False, True])
async def test_an_architecture_that_nobody_serves_is_refused_by_name(
    fetcher: Fetcher, registry: Registry, small: int, *, is_packed: bool
) -> None:
    content = make_tar(make_entries(GEMMA) | {"models/pytorch_model.bin": RANDOM})
    push(registry, BASE, gzip.compress(content, 1) if is_packed else content)
    found = await look(fetcher, registry)
    assert "names the architecture GemmaForCausalLM" in found.facts.fault
    assert count_sent(registry) <= small + 1


async def test_another_format_is_refused_by_name(fetcher: Fetcher, registry: Registry) -> None:
    push(registry, BASE, {"models/config.json": json.dumps(MEDIUM).encode(), "models/m.Q4.gguf": RANDOM})
    found = await look(fetcher, registry)
    assert "There are GGUF (m.Q4.gguf)" in found.facts.fault
    assert (found.num_files, found.num_bytes) == (0, None)
    assert count_sent(registry) < 3 * FIRST_BYTES


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("is_packed", [False, True])
async def test_a_quantised_checkpoint_without_a_reader_is_refused(
    fetcher: Fetcher, registry: Registry, *, is_packed: bool
) -> None:
    gptq = MEDIUM | {"quantization_config": {"quant_method": "gptq", "bits": 3}}
    for entries, words in ((make_entries(dtype="F8_E4M3"), "F8_E4M3"), (make_entries(gptq), "bits 3")):
        content = make_tar(entries)
        push(registry, gzip.compress(content, 1) if is_packed else content)
        assert words in (await look(fetcher, registry)).facts.fault


async def test_a_tensor_is_missing_only_where_all_was_seen(
    fetcher: Fetcher, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = make_entries()
    del entries[f"models/{INDEX}"], entries[f"models/{SHARDS[1]}"]
    packed = gzip.compress(make_tar(entries), 1)
    push(registry, packed)
    assert "lack the tensor" in (await look(fetcher, registry)).facts.fault
    monkeypatch.setattr(tarball, "MAX_FETCHED_BYTES", len(packed) - 1)
    assert (await look(fetcher, registry)).facts.fault is None


async def test_a_shard_that_is_not_there_is_named(fetcher: Fetcher, registry: Registry) -> None:
    entries = make_entries()
    del entries[f"models/{SHARDS[1]}"]
    push(registry, entries)
    with pytest.raises(SourceError, match=f"names {SHARDS[1]}, which is not there"):
        await look(fetcher, registry)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("name", ["config.json", SHARDS[0]])
async def test_a_link_in_the_place_of_a_file_is_refused(
    fetcher: Fetcher, registry: Registry, name: str, *, is_packed: bool
) -> None:
    content = make_tar(make_entries() | {f"models/{name}": make_link("/etc/passwd")})
    push(registry, gzip.compress(content, 1) if is_packed else content)
    with pytest.raises(SourceError, match=f"{name} is a link in the image, which is not followed"):
        await look(fetcher, registry)


async def test_a_file_that_is_no_safetensors_file_is_named(fetcher: Fetcher, registry: Registry) -> None:
    push(registry, make_entries() | {f"models/{SHARDS[0]}": b"<html>what?</html>"})
    with pytest.raises(CorruptError, match=f"{SHARDS[0]} is no safetensors file"):
        await look(fetcher, registry)


@pytest.mark.parametrize("bomb", BOMBS)
async def test_a_layer_that_would_do_harm_is_refused_as_by_a_fetch(
    fetcher: Fetcher, registry: Registry, bomb: str
) -> None:
    blob, told = BOMBS[bomb]
    push(registry, make_entries(), blob)
    with pytest.raises(FetchError, match=told):
        await look(fetcher, registry)


async def test_names_that_leave_the_folder_and_entries_without_end_are_refused(
    fetcher: Fetcher, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(registry, make_entries() | {"models/../../x": b"escaped"})
    with pytest.raises(UnsafeNameError, match="leaves its folder: refused"):
        await look(fetcher, registry)
    monkeypatch.setattr(tarball, "MAX_MEMBERS", 50)
    push(registry, {f"models/{number}": b"" for number in range(60)})
    with pytest.raises(SourceError, match="more than 50 entries: refused"):
        await look(fetcher, registry)


async def test_a_layer_that_grows_without_end_costs_little(
    fetcher: Fetcher, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    zeros = {"models/config.json": json.dumps(MEDIUM).encode(), "models/zeros": bytes(30 << 20)}
    push(registry, gzip.compress(make_tar(zeros), 1))
    monkeypatch.setattr(tarball, "MAX_UNPACKED_BYTES", 8 << 20)
    found = await look(fetcher, registry)
    assert found.facts.architecture == "LlamaForCausalLM", "the look ends there"
    monkeypatch.setattr(tarball, "_SMALL_BYTES", 4 << 20)
    with pytest.raises(SourceError, match="refused"):
        await look(fetcher, registry)


async def test_headers_without_end_are_not_kept(
    fetcher: Fetcher, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tarball, "MAX_KEPT_BYTES", 10_000)
    large = (50_000).to_bytes(8, "little") + bytes(60_000)
    entries = make_entries(GEMMA) | {f"models/{SHARDS[0]}": large}
    push(registry, entries)
    assert "Gemma" in (await look(fetcher, registry)).facts.fault


async def test_of_names_alone_the_models_are_kept_and_not_without_end(
    fetcher: Fetcher, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tarball, "MAX_KEPT_BYTES", 20_000)
    for folder, is_whole in (("usr/lib", True), ("models/more", False)):
        push(registry, {f"{folder}/{'a' * 200}{number}": b"" for number in range(200)}, make_entries())
        found = await look(fetcher, registry)
        assert found.facts.fault is None
        assert (found.num_files == 5) == is_whole


async def test_layers_without_end_are_not_looked_at(
    fetcher: Fetcher, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_look, "MAX_LAYERS", 3)
    layers: list[Entries] = [{f"layers/{number}": b""} for number in range(5)]
    push(registry, make_entries(), *layers)
    assert (await look(fetcher, registry)).facts is None
    assert sum(1 for _, _, end in registry.blobs.ranges if end > 1) == 3


async def test_without_ranges_a_layer_comes_whole_or_not_at_all(
    fetcher: Fetcher, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.blobs.has_ranges = False
    push(registry, make_entries())
    assert (await look(fetcher, registry)).facts == find_facts(MEDIUM, stored_of(MEDIUM))
    monkeypatch.setattr(tarball, "MAX_FETCHED_BYTES", 300_000)
    registry.blobs.requests.clear()
    assert (await look(fetcher, registry)).facts is None
    assert len(registry.blobs.requests) == 1, "the one that asks for ranges"


async def test_ranges_that_end_on_the_way_are_no_failure(fetcher: Fetcher, registry: Registry) -> None:
    def forget(_: web.Request) -> None:
        registry.blobs.has_ranges = len(registry.blobs.requests) < 3

    registry.blobs.faults.append(forget)
    push(registry, make_entries(GEMMA))
    assert "Gemma" in (await look(fetcher, registry)).facts.fault


async def test_what_fails_on_the_way_is_tried_again(fetcher: Fetcher, registry: Registry) -> None:
    push(registry, make_entries())
    (digest,) = registry.blobs.contents
    busy = once(lambda: web.Response(status=429), 2)
    registry.blobs.faults.append(lambda request: busy(request) if len(registry.blobs.requests) > 2 else None)
    registry.blobs.cuts[digest] = 3  # one cuts the byte that asks for ranges, which is not read
    assert (await look(fetcher, registry)).facts == find_facts(MEDIUM, stored_of(MEDIUM))
    assert len(fetcher.witness.said) == 4


async def test_a_registry_that_stays_broken_is_told_of(fetcher: Fetcher, registry: Registry) -> None:
    push(registry, make_entries())
    registry.blobs.faults.append(
        lambda _: web.Response(status=503) if len(registry.blobs.requests) > 2 else None
    )
    with pytest.raises(FetchError, match="503, 6 times in a row"):
        await look(fetcher, registry)


@pytest.fixture
def few_threads() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.usefixtures("few_threads")
async def test_a_look_that_is_cancelled_asks_for_nothing_more(fetcher: Fetcher, registry: Registry) -> None:
    push(registry, make_entries())
    registry.blobs.bytes_per_second = 50_000
    asked = asyncio.Event()
    registry.blobs.on_sent = lambda _: asked.set() if len(registry.blobs.requests) > 1 else None
    task = asyncio.ensure_future(look(fetcher, registry))
    await asyncio.wait_for(asked.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    num_requests = len(registry.blobs.requests)
    registry.blobs.bytes_per_second = None
    await asyncio.sleep(0.05)
    assert len(registry.blobs.requests) == num_requests


async def test_the_command_ends_at_sigterm_while_it_looks(registry: Registry, tmp_path: Path) -> None:
    push(registry, make_entries())
    registry.blobs.bytes_per_second = 10_000
    process = await start_command(f"{registry.uri}:v1", "--resolve", str(tmp_path / "found"))
    await asyncio.wait_for(until(lambda: len(registry.blobs.requests) > 1), 30)
    process.terminate()
    status, _, err = await finish(process)
    assert (status, err) == (143, "millrace fetch: stopped; the next run continues from here\n")
    assert not (tmp_path / "found").exists()


async def run_size(registry: Registry, *flags: str) -> int:
    return await asyncio.to_thread(main, [f"{registry.uri}:v1", *flags])


async def test_millrace_size_prints_what_it_prints_of_a_folder(
    registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    push(registry, make_entries())
    for path, content in make_entries().items():
        (tmp_path / Path(path).name).write_bytes(content)
    assert await run_size(registry, "--accelerator", "l4") == 0
    _, *lines = capsys.readouterr().out.splitlines()
    assert main([str(tmp_path), "--accelerator", "l4"]) == 0
    assert lines == capsys.readouterr().out.splitlines()[1:]


@pytest.mark.usefixtures("small")
async def test_millrace_size_says_where_it_has_not_counted(
    registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    push(registry, gzip.compress(make_tar(make_entries()), 1))
    assert await run_size(registry, "--memory", "8GiB") == 0
    out = capsys.readouterr().out
    told = "Not all files were seen before a fetch: the parameters are those that config.json describes."
    assert out.splitlines()[2] == told
    assert "Fits: " in out
    assert await run_size(registry, "--memory", "4MiB") == 1
    assert "Does not fit: " in capsys.readouterr().out
    assert await run_size(registry, "--json") == 0
    assert json.loads(capsys.readouterr().out)["is_whole"] is False


@pytest.mark.usefixtures("small")
async def test_millrace_size_says_what_to_do_where_it_sees_nothing(
    registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    push(registry, gzip.compress(make_tar(dict(reversed(make_entries().items()))), 1))
    assert await run_size(registry) == 1
    assert (
        "fetch the model with millrace fetch, and give the folder to millrace size" in capsys.readouterr().err
    )
