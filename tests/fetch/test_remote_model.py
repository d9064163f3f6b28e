"""What a source has now, without its weights; and a fetch of that revision alone."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace_fetch.cli import remote_model
from millrace_fetch.errors import SourceError
from millrace_fetch.plan.uri import pin
from millrace_fit.units import show_bytes
from testing.checkpoints.models import MEDIUM, write_model
from testing.model_sources.kills import hash_file, list_files
from testing.model_sources.processes import Forked, finish, start_command
from testing.model_sources.registry import Registry
from testing.model_sources.s3_server import ACCOUNT, S3Server, running_moto
from testing.model_sources.servers import FakeHub, WebFolderServer
from tests.fetch.conftest import NEEDED, SHARDS, Fetcher, make_model

URI = "hf://org/m"
NUM_NUMBERS = 500_000
"""Of a shard: 1 MB."""


def make_shard(name: str) -> bytes:
    """A safetensors file with one tensor."""
    told = {name: {"dtype": "BF16", "shape": [NUM_NUMBERS], "data_offsets": [0, 2 * NUM_NUMBERS]}}
    header = json.dumps(told).encode()
    return len(header).to_bytes(8, "little") + header + bytes(2 * NUM_NUMBERS)


def make_readable() -> dict[str, bytes]:
    return make_model() | {SHARDS[0]: make_shard("a"), SHARDS[1]: make_shard("b")}


def make_servable(folder: Path) -> dict[str, bytes]:
    """A model of an architecture that replicas serve."""
    write_model(folder, MEDIUM)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def contents() -> dict[str, bytes]:
    return make_readable()


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


async def test_of_a_server_that_gives_no_parts_nothing_is_known_and_it_is_fetched_whole(
    folder_server: WebFolderServer, fetcher: Fetcher
) -> None:
    folder_server.files.has_ranges = False
    order = fetcher.order(folder_server.uri)
    found = await remote_model.resolve(order, fetcher.open_source(order), fetcher.witness.say)
    assert (found.facts, found.num_files) == (None, len(NEEDED))
    assert "sends files only whole" in fetcher.witness.said[-1]
    assert len(folder_server.files.contents[SHARDS[0]]) > 2 * NUM_NUMBERS
    await fetcher.fetch_order(replace(order, revision=found.revision))
    fetcher.check(folder_server.files.contents)


async def test_a_hub_tells_its_commit_and_the_size_and_sends_no_weights(
    hub: FakeHub, fetcher: Fetcher
) -> None:
    found = await remote_model.resolve(fetcher.order("hf://org/m"), fetcher.hub_source(), fetcher.witness.say)
    contents = hub.files.contents
    assert found.facts.stored == {"BF16": 2 * NUM_NUMBERS}
    assert (found.revision, found.num_files) == (hub.commit, len(NEEDED))
    assert found.num_bytes == sum(len(contents[name]) for name in NEEDED)
    assert all(hub.large.sent[name] <= 128 << 10 for name in SHARDS), "only the headers"
    assert not fetcher.folder.exists()


async def test_a_bucket_sends_no_weights(fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_moto() as bucket:
        bucket.fill(make_readable())
        async with S3Server(bucket.endpoint) as server:
            for name, value in (ACCOUNT | {"AWS_ENDPOINT_URL": server.endpoint}).items():
                monkeypatch.setenv(name, value)
            await check_head(fetcher, "s3://models/org/m")
            assert all(server.sent[name] <= 128 << 10 for name in SHARDS), "only the headers"


async def test_a_registry_sends_no_weights(fetcher: Fetcher) -> None:
    async with Registry() as registry:
        registry.push_files(make_readable())
        await check_head(fetcher, f"{registry.uri}:v1")
        shards = [f"sha256:{hashlib.sha256(make_shard(name)).hexdigest()}" for name in ("a", "b")]
        assert all(0 < registry.blobs.sent[digest] <= 129 << 10 for digest in shards), "headers alone"


async def check_head(fetcher: Fetcher, uri: str) -> None:
    """What the model is, is known, and nothing of it is here."""
    order = fetcher.order(uri)
    found = await remote_model.resolve(order, fetcher.open_source(order), fetcher.witness.say)
    assert found.facts.stored == {"BF16": 2 * NUM_NUMBERS}
    assert found.num_files == len(NEEDED)
    assert not fetcher.folder.exists()


async def test_a_web_server_tells_the_hash_of_its_state(
    folder_server: WebFolderServer, fetcher: Fetcher
) -> None:
    order = fetcher.order(folder_server.uri)
    found = await remote_model.resolve(order, fetcher.open_source(order), fetcher.witness.say)
    outcome = await fetcher.fetch(folder_server.uri)
    assert found.revision == outcome.marker.revision


async def test_a_branch_that_moved_on_still_gives_the_commit_that_was_resolved(
    hub: FakeHub, fetcher: Fetcher
) -> None:
    order = replace(fetcher.order("hf://org/m@main"), revision=hub.commit)
    hub.revisions = {hub.commit}  # the branch is gone
    outcome = await fetcher.fetch_order(pin(order))
    assert outcome.marker.revision == hub.commit
    fetcher.check(hub.files.contents)


async def test_a_rollback_has_the_bytes_of_its_commit_though_the_branch_has_moved_on(
    hub: FakeHub, fetcher: Fetcher
) -> None:
    """One shard is another of the same size in the second commit, and one of another size in the third."""
    first, old = hub.commit, dict(hub.files.contents)
    hub.move_on("2" * 40, {name: bytes(reversed(old[name])) for name in (SHARDS[0], "tokenizer.json")})
    hub.move_on("3" * 40, {SHARDS[1]: old[SHARDS[1]] + bytes(8)})
    branch = fetcher.order(f"{URI}@main")
    for commit, contents in ((first, old), (hub.commit, hub.files.contents), (first, old)):
        outcome = await fetcher.fetch_order(pin(replace(branch, revision=commit)))
        assert (outcome.has_fetched, outcome.marker.revision) == (True, commit)
        found = {name: hash_file(fetcher.folder / name) for name in list_files(fetcher.folder)}
        assert found == {name: hashlib.sha256(contents[name]).hexdigest() for name in NEEDED}


async def test_a_web_folder_that_changed_since_is_refused_by_name(
    folder_server: WebFolderServer, fetcher: Fetcher
) -> None:
    order = fetcher.order(folder_server.uri)
    found = await remote_model.resolve(order, fetcher.open_source(order), fetcher.witness.say)
    folder_server.files.contents["tokenizer.json"] = b"{}"
    with pytest.raises(SourceError, match=f"the wanted revision {found.revision} is gone"):
        await fetcher.fetch_order(replace(order, revision=found.revision))
    assert not fetcher.is_marked()


async def ask(hub: FakeHub, path: Path) -> Forked:
    return await start_command(URI, "--resolve", str(path), HF_ENDPOINT=hub.endpoint)


async def test_the_command_writes_what_it_found_into_a_file(hub: FakeHub, tmp_path: Path) -> None:
    path = tmp_path / "termination-log"
    status, out, err = await finish(await ask(hub, path))
    assert (status, err) == (0, "")
    found = read(path)
    fault = found["facts"]["fault"]
    assert out == f"hf://org/m has revision {hub.commit}, which no replica can serve: {fault}\n"
    num_bytes = sum(len(hub.files.contents[name]) for name in NEEDED)
    assert (found["revision"], found["numFiles"], found["numBytes"]) == (hub.commit, 8, num_bytes)
    assert fault.startswith("config.json names the architecture none")
    assert path.stat().st_size < 2000


async def test_the_command_says_how_much_a_model_is_that_can_be_served(tmp_path: Path) -> None:
    contents = make_servable(tmp_path)
    async with FakeHub(contents) as hub:
        status, out, _ = await finish(await ask(hub, tmp_path / "told"))
    num_bytes = sum(len(content) for content in contents.values())
    assert status == 0
    assert out == f"hf://org/m has revision {hub.commit}: 3 files, {show_bytes(num_bytes)}\n"


async def test_the_command_says_where_it_cannot_write(hub: FakeHub, tmp_path: Path) -> None:
    path = tmp_path / "absent" / "file"
    status, _, err = await finish(await ask(hub, path))
    assert status == 3
    assert err.endswith(f"millrace fetch: {path} can't be written: No such file or directory\n")


async def test_the_command_wants_one_of_its_two_ends(hub: FakeHub) -> None:
    status, _, err = await finish(await start_command(URI, HF_ENDPOINT=hub.endpoint))
    assert status == 2
    assert "one of the arguments --to --resolve is required" in err
