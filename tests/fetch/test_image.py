"""Images whose layers have a model's files below /models."""

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from millrace_fetch.cli.progress_output import Tally
from millrace_fetch.cli.remote_model import resolve
from millrace_fetch.errors import CorruptError, FetchError, SourceError, UnsafeNameError
from millrace_fetch.fetch import fetch
from millrace_fetch.image import tarball
from millrace_fetch.image.overlay import Member, overlay
from millrace_fetch.store.files import PlacedFiles
from millrace_fetch.transfer.content import Layers
from millrace_operator.controller.fetch_progress import read_answer
from millrace_operator.observed.snapshot import Fetched
from testing.model_sources.registry import TAR, TITLE, Entries, Registry, make_link, make_tar
from tests.fetch.bombs import BOMBS
from tests.fetch.conftest import INDEX, SHARDS, Fetcher, Witness, make_model


@pytest.fixture
def contents() -> dict[str, bytes]:
    return make_model()


def in_models(contents: dict[str, bytes], prefix: str = "models/") -> Entries:
    return {f"{prefix}{name}": content for name, content in contents.items()}


def push(registry: Registry, *layers: Entries) -> str:
    registry.push([(make_tar(entries), TAR, {}) for entries in layers], "v1")
    return f"{registry.uri}:v1"


@pytest.mark.parametrize("pack", [bytes, gzip.compress, tarball.zstd.compress])
@pytest.mark.parametrize("prefix", ["models/", "./models/", "/models/"])
async def test_an_image_comes_whole_and_once(
    fetcher: Fetcher, registry: Registry, contents: dict[str, bytes], pack: object, prefix: str
) -> None:
    base = make_tar({"etc/passwd": b"root", "bin/sh": make_link("/bin/busybox")})
    model = pack(make_tar(in_models(contents, prefix)))  # type: ignore[operator]
    registry.push([(base, TAR, {}), (model, f"{TAR}+gzip", {}), (base, TAR, {})])
    await fetcher.fetch(f"{registry.uri}:v1")
    fetcher.check(contents)
    assert fetcher.witness.done == fetcher.witness.total
    assert not (fetcher.folder / ".millrace" / "layers").exists()
    assert not (await fetcher.fetch(f"{registry.uri}:v1")).has_fetched


MODELPACK, MODELKIT = "application/vnd.cncf.model", "application/vnd.kitops.modelkit"
WEIGHTS: Entries = {"m/model.safetensors": b"w"}
UNPACK = {"io.deis.oras.content.unpack": "true"}
Blobs = list[tuple[bytes, str, dict[str, str]]]


def pack_folder(contents: dict[str, bytes], title: str) -> Blobs:
    """As `oras push` does with a folder."""
    tar = make_tar(in_models(contents, "" if title == "." else f"{title}/"), gzipped=True)
    return [(tar, f"{TAR}+gzip", UNPACK | {TITLE: title})]


def pack_each(contents: dict[str, bytes], kind: str) -> Blobs:
    """As `kit pack` and `modctl build` do, each file in a layer."""
    return [(make_tar({name: content}), kind, {}) for name, content in contents.items()]


FOLDERS: dict[str, Callable[[dict[str, bytes]], Blobs]] = {
    "ORAS": lambda contents: pack_folder(contents, "my-model"),
    "ORAS, of a deep folder": lambda contents: pack_folder(contents, "models/my"),
    "ORAS, of the present folder": lambda contents: pack_folder(contents, "."),
    "ModelPack, tars": lambda contents: pack_each(contents, f"{MODELPACK}.weight.v1.tar"),
    "ModelPack, files": lambda contents: [
        (content, f"{MODELPACK}.weight.v1.raw", {"org.cncf.model.filepath": name})
        for name, content in contents.items()
    ],
    "ModelKit": lambda contents: pack_each(contents, f"{MODELKIT}.modelpart.v1.tar"),
}


@pytest.mark.parametrize("form", FOLDERS)
async def test_a_packed_folder_comes_whole_and_is_seen_before(
    fetcher: Fetcher, registry: Registry, contents: dict[str, bytes], form: str
) -> None:
    registry.push(FOLDERS[form](contents | {"tokenizer.json": b"version https://git-lfs.github.com/spec/v1"}))
    found = await resolve(
        fetcher.order(f"{registry.uri}:v1"), fetcher.open_source(fetcher.order(f"{registry.uri}:v1")), print
    )
    assert found.facts is not None
    assert "tokenizer.json is a pointer of Git LFS" in (found.facts.fault or "")
    registry.push(FOLDERS[form](contents))
    await fetcher.fetch(f"{registry.uri}:v1")
    fetcher.check(contents)


@pytest.mark.parametrize(
    ("entries", "title", "words"),
    [
        ({"m/../../config.json": b"{}"}, "m", "leaves its folder: refused"),
        (
            WEIGHTS | {"m/config.json": make_link("/etc/passwd")},
            "m",
            r"config\.json is a link",
        ),
        ({"m/config.json": b"{}"}, "../m", "leaves its folder: refused"),
        ({"other/config.json": b"{}"}, "m", "no files below /m"),
        (
            WEIGHTS | {"m/a/config.json": b"{}"},
            "m",
            r"no config\.json.* a/config\.json is in a folder",
        ),
    ],
)
async def test_a_packed_folder_that_is_no_models_is_refused(
    fetcher: Fetcher, registry: Registry, *, entries: Entries, title: str, words: str
) -> None:
    registry.push([(make_tar(entries), TAR, UNPACK | {TITLE: title})])
    with pytest.raises(FetchError, match=words):
        await fetcher.fetch(f"{registry.uri}:v1")
    assert not fetcher.names()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("application/vnd.ollama.image.model", "is a model of Ollama, which can't be served: push config"),
        ("application/vnd.docker.ai.gguf.v3", "is a model of Docker Model Runner, which"),
        ("application/vnd.wasm", r"is an artifact of 'application/vnd\.wasm', which can't be served"),
    ],
)
async def test_an_artifact_of_another_kind_is_named(
    fetcher: Fetcher, registry: Registry, kind: str, words: str
) -> None:
    registry.push([(b"GGUF", kind, {})])
    with pytest.raises(SourceError, match=words):
        await fetcher.fetch(f"{registry.uri}:v1")


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
async def test_the_layers_count_as_they_come_and_as_they_are_unpacked(
    fetcher: Fetcher, registry: Registry, pack: Callable[[bytes], bytes]
) -> None:
    """All that is told, from the first byte to the last: it never falls, and is whole at the end alone."""
    layers = [make_tar({"etc/passwd": b"root" * 5000}), make_tar(in_models(make_model(3 << 20)))]
    registry.push([(pack(layer), TAR, {}) for layer in layers])
    told: list[Fetched] = []

    class Told(Tally):
        def begin(self, total_bytes: int | None, done_bytes: int) -> None:
            super().begin(total_bytes, done_bytes)
            self.keep()

        def advance(self, num_bytes: int) -> None:
            super().advance(num_bytes)
            self.keep()

        def keep(self) -> None:
            answer = read_answer(json.dumps(self.render()).encode())
            assert answer is not None
            told.append(answer)

    order = fetcher.order(f"{registry.uri}:v1")
    await fetch(order, fetcher.open_source(order), Told(Witness()))
    assert {answer.total_bytes for answer in told} == {2 * sum(len(pack(layer)) for layer in layers)}
    done = [answer.done_bytes for answer in told]
    assert done == sorted(done)
    assert [answer.percent for answer in told].count(100) == 1
    assert {50, 75} <= {answer.percent for answer in told}
    if pack is gzip.compress:
        listing = {answer.percent for answer in told if answer.percent and 50 < answer.percent < 75}
        assert len(listing) >= 5, "silent while the layers are listed"


async def test_a_layer_is_decompressed_once_to_list_it_and_once_to_unpack_it(
    fetcher: Fetcher, registry: Registry, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index too is read on one of the two ways: it may come last."""
    opened: list[Path] = []
    begin = gzip.GzipFile.__init__

    def count(file: gzip.GzipFile, *, fileobj: IO[bytes]) -> None:
        opened.append(Path(fileobj.name))
        begin(file, fileobj=fileobj)

    contents[INDEX] = contents.pop(INDEX)
    layer = gzip.compress(make_tar(in_models(contents)))
    registry.push([(layer, f"{TAR}+gzip", {})])
    monkeypatch.setattr(gzip.GzipFile, "__init__", count)
    await fetcher.fetch(f"{registry.uri}:v1")
    fetcher.check(contents)
    assert len(opened) == 2


async def test_the_index_of_the_uppermost_layer_counts(
    fetcher: Fetcher, registry: Registry, contents: dict[str, bytes]
) -> None:
    old = {f"models/{INDEX}": b'{"weight_map": {"a": "gone.safetensors"}}'}
    await fetcher.fetch(push(registry, old, in_models(contents), {"etc/passwd": b"root"}))
    fetcher.check(contents)


async def test_upper_layers_hide_lower_ones(
    fetcher: Fetcher, registry: Registry, contents: dict[str, bytes]
) -> None:
    old = in_models(dict.fromkeys(contents, b"old")) | {"models/added_tokens.json": b"old"}
    upper = in_models(contents) | {"models/.wh.added_tokens.json": b""}
    await fetcher.fetch(push(registry, old, upper))
    fetcher.check(contents)


async def test_a_kill_while_it_unpacks_costs_no_bytes(
    fetcher: Fetcher, registry: Registry, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    install = PlacedFiles.install

    def die(files: PlacedFiles, part: object, name: str) -> None:
        if name == SHARDS[1]:
            raise RuntimeError("killed")
        install(files, part, name)  # type: ignore[arg-type]

    monkeypatch.setattr(PlacedFiles, "install", die)
    uri = push(registry, in_models(contents))
    with pytest.raises(RuntimeError, match="killed"):
        await fetcher.fetch(uri)
    assert not fetcher.is_marked()
    monkeypatch.setattr(PlacedFiles, "install", install)
    registry.blobs.sent.clear()
    await fetcher.fetch(uri)
    fetcher.check(contents)
    assert sum(registry.blobs.sent.values()) <= 1  # the byte that asks for ranges


async def test_a_layer_that_is_not_that_of_the_digest_is_never_opened(
    fetcher: Fetcher, registry: Registry, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = push(registry, in_models(contents))
    ((digest, blob),) = registry.blobs.contents.items()
    registry.blobs.contents[digest] = blob[:-1] + b"!"
    monkeypatch.setattr(Layers, "__init__", None)
    with pytest.raises(CorruptError, match=r"has sha256 .* twice"):
        await fetcher.fetch(uri)
    assert fetcher.names() == []


@pytest.mark.parametrize("name", ["models/../../x", "../x", "models/a/../../../x"])
async def test_an_entry_that_leaves_the_folder_is_refused(
    fetcher: Fetcher, registry: Registry, contents: dict[str, bytes], name: str
) -> None:
    with pytest.raises(UnsafeNameError, match="leaves its folder: refused"):
        await fetcher.fetch(push(registry, in_models(contents) | {name: b"escaped"}))
    assert fetcher.names() == []


@pytest.mark.parametrize("name", ["config.json", SHARDS[0], "model.safetensors.index.json"])
@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
async def test_a_link_or_a_device_in_the_place_of_a_file_is_refused(
    fetcher: Fetcher, registry: Registry, contents: dict[str, bytes], name: str, kind: bytes
) -> None:
    entries = in_models(contents) | {f"models/{name}": make_link("/etc/passwd", kind)}
    with pytest.raises(SourceError, match=f"{name} is a link in the image, which is not followed"):
        await fetcher.fetch(push(registry, entries))
    assert name not in fetcher.names()


async def test_links_that_nobody_needs_do_no_harm(
    fetcher: Fetcher, registry: Registry, contents: dict[str, bytes]
) -> None:
    links: Entries = {"models/latest": make_link("/"), "mnt": make_link("/models")}
    await fetcher.fetch(push(registry, links | in_models(contents)))
    fetcher.check(contents)


async def test_an_image_without_a_model_says_so(fetcher: Fetcher, registry: Registry) -> None:
    with pytest.raises(SourceError, match="no files below /models"):
        await fetcher.fetch(push(registry, {"app/config.json": b"{}"}))


async def test_an_index_of_more_than_a_mebibyte_is_read(
    fetcher: Fetcher, registry: Registry, contents: dict[str, bytes]
) -> None:
    contents[INDEX] += b" " * (3 << 20)
    await fetcher.fetch(push(registry, in_models(contents)))
    fetcher.check(contents)


async def test_code_in_an_image_never_comes(
    fetcher: Fetcher, registry: Registry, contents: dict[str, bytes]
) -> None:
    await fetcher.fetch(push(registry, in_models(contents)))
    assert not [name for name in fetcher.names() if name.endswith((".bin", ".py"))]


@pytest.mark.parametrize("bomb", BOMBS)
async def test_an_archive_that_would_do_harm_is_refused(
    fetcher: Fetcher, registry: Registry, bomb: str
) -> None:
    blob, told = BOMBS[bomb]
    registry.push([(blob, TAR, {})])
    with pytest.raises(FetchError, match=told) as caught:
        await fetcher.fetch(f"{registry.uri}:v1")
    assert caught.value.is_final
    assert fetcher.names() == []


@pytest.mark.parametrize("name", ["models/zeros.safetensors", "other/zeros"])
async def test_a_layer_that_grows_without_end_is_refused(
    fetcher: Fetcher, registry: Registry, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(tarball, "_SMALL_BYTES", 4 << 20)
    registry.push([(make_tar({name: bytes(30 << 20), "models/config.json": b"{}"}, gzipped=True), TAR, {})])
    with pytest.raises(SourceError, match="refused"):
        await fetcher.fetch(f"{registry.uri}:v1")
    assert fetcher.names() == []


async def test_entries_without_end_are_refused(
    fetcher: Fetcher, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tarball, "MAX_MEMBERS", 50)
    with pytest.raises(SourceError, match="more than 50 entries: refused"):
        await fetcher.fetch(push(registry, {f"models/{number}": b"" for number in range(60)}))


def test_pax_headers_in_a_chain_end() -> None:
    info = tarfile.TarInfo("x")
    chain = info.create_pax_global_header({"a": "b"}) * 3000
    with pytest.raises(RecursionError), tarfile.open(fileobj=io.BytesIO(chain)) as tar:
        tar.next()
    assert RecursionError in tarball._FAULTS


def test_whiteouts_hide_what_is_below_them_and_nothing_beside() -> None:
    def layer(number: int, *paths: str) -> list[Member]:
        return [Member(path, 1, True, number, place) for place, path in enumerate(paths)]

    lower = layer(0, "models/a", "models/ab", "models/d/x", "models/d/y", "models/de", "etc/z")
    assert set(overlay([lower])) == {"a", "ab", "d/x", "d/y", "de"}
    assert set(overlay([lower, layer(1, "models/.wh.a")])) == {"ab", "d/x", "d/y", "de"}
    assert set(overlay([lower, layer(1, "models/.wh.d")])) == {"a", "ab", "de"}
    assert set(overlay([lower, layer(1, "models/d/.wh..wh..opq", "models/d/n")])) == {"a", "ab", "de", "d/n"}
    for hidden in (".wh.models", ".wh..wh..opq", "models/.wh..wh..opq"):
        assert set(overlay([lower, layer(1, "models/n", hidden)])) == {"n"}
    again = overlay([lower, layer(1, "models/.wh.a"), layer(2, "models/a")])
    assert again["a"].layer == 2
    with pytest.raises(SourceError):
        overlay([lower, layer(1, ".wh.models")])
