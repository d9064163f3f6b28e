import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import ClientTimeout, web

from millrace_fetch.errors import CorruptError, SourceError, UnavailableError
from millrace_fetch.plan.uri import OciImage
from millrace_fetch.sources.oci import OciSource
from millrace_fetch.transfer import client
from millrace_fetch.transfer.download import NOTE_BYTES
from testing.model_sources.processes import finish, start_fetch, until
from testing.model_sources.registry import FILE, INDEX, TITLE, Registry
from testing.model_sources.servers import once
from tests.fetch.conftest import NEEDED, SHARDS, Fetcher, make_model

ACCOUNT = "me:secret-password"


@pytest.fixture(autouse=True)
def docker_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.delenv("MILLRACE_OCI_PLAIN_HTTP", raising=False)
    (tmp_path / "docker").mkdir()
    return tmp_path / "docker" / "config.json"


@pytest.fixture
def contents() -> dict[str, bytes]:
    return make_model()


@pytest.fixture
async def registry(contents: dict[str, bytes]) -> AsyncIterator[Registry]:
    async with Registry() as registry:
        registry.push_files(contents)
        yield registry


def log_in(config: Path, registry: Registry, account: str = ACCOUNT) -> None:
    auth = base64.b64encode(account.encode()).decode()
    config.write_text(json.dumps({"auths": {f"https://{registry.host}/v1/": {"auth": auth}}}))


def write(config: Path, text: str) -> None:
    config.write_text(text)


def told(fetcher: Fetcher, error: Exception | None = None) -> str:
    stored = [path.read_text(errors="replace") for path in (fetcher.folder / ".millrace").rglob("*.j*")]
    return "\n".join([*fetcher.witness.said, *stored, str(error)])


async def test_an_artifact_of_files_comes_whole_and_once(
    fetcher: Fetcher, registry: Registry, contents: dict[str, bytes]
) -> None:
    outcome = await fetcher.fetch(f"{registry.uri}:v1")
    fetcher.check(contents)
    digest = f"sha256:{hashlib.sha256(registry.manifests['v1']).hexdigest()}"
    assert (outcome.marker.revision, outcome.marker.source) == (digest, registry.uri)
    registry.blobs.requests.clear()
    assert not (await fetcher.fetch(f"{registry.uri}:v1")).has_fetched
    assert registry.blobs.requests == [("GET", outcome_blob(registry))]


def outcome_blob(registry: Registry) -> str:
    return max(registry.blobs.contents, key=lambda digest: len(registry.blobs.contents[digest]))


async def test_of_a_digest_that_is_there_the_registry_is_not_even_asked(
    fetcher: Fetcher, registry: Registry, contents: dict[str, bytes]
) -> None:
    outcome = await fetcher.fetch(f"{registry.uri}:v1")
    registry.manifests.clear()
    assert not (await fetcher.fetch(f"{registry.uri}@{outcome.marker.revision}")).has_fetched
    fetcher.check(contents)


async def test_an_index_gives_the_image_for_amd64_else_its_first(
    fetcher: Fetcher, registry: Registry, contents: dict[str, bytes]
) -> None:
    other = registry.push_files({"config.json": b"other"}, "other")
    ours = registry.push_files(contents, "ours")
    other["platform"] = {"os": "linux", "architecture": "arm64"}
    ours["platform"] = {"os": "linux", "architecture": "amd64"}
    registry.put({"schemaVersion": 2, "mediaType": INDEX, "manifests": [other, ours]}, "index")
    del ours["platform"], other["platform"]
    registry.put({"schemaVersion": 2, "mediaType": INDEX, "manifests": [ours, other]}, "first")
    await fetcher.fetch(f"{registry.uri}:index")
    fetcher.check(contents)
    assert (await fetcher.fetch(f"{registry.uri}:first")).marker.num_bytes > 200_000


@pytest.mark.parametrize("has_ranges", [True, False])
async def test_a_token_is_got_renewed_and_kept_from_the_host_of_the_blobs(
    fetcher: Fetcher, registry: Registry, contents: dict[str, bytes], *, has_ranges: bool
) -> None:
    registry.token_uses = 8
    registry.blobs.has_ranges = has_ranges
    await fetcher.fetch(f"{registry.uri}:v1")
    fetcher.check(contents)
    assert registry.realm_authorizations == [None, None]
    assert set(registry.blobs.authorizations) == {None}
    assert "secret" not in told(fetcher)


@pytest.mark.parametrize("wants_basic", [True, False])
async def test_the_password_of_docker_login_goes_to_the_registry_alone(
    fetcher: Fetcher,
    registry: Registry,
    contents: dict[str, bytes],
    docker_config: Path,
    *,
    wants_basic: bool,
) -> None:
    registry.account, registry.token_uses, registry.wants_basic = ACCOUNT, 100, wants_basic
    log_in(docker_config, registry)
    await fetcher.fetch(f"{registry.uri}:v1")
    fetcher.check(contents)
    assert set(registry.blobs.authorizations) == {None}


async def test_a_pull_secret_that_is_mounted_is_read(
    fetcher: Fetcher, registry: Registry, contents: dict[str, bytes], docker_config: Path
) -> None:
    registry.account, registry.token_uses = ACCOUNT, 100
    log_in(docker_config.with_name(".dockerconfigjson"), registry)
    await fetcher.fetch(f"{registry.uri}:v1")
    fetcher.check(contents)


@pytest.mark.parametrize("wants_basic", [True, False])
async def test_who_is_not_let_in_is_told_what_to_do(
    fetcher: Fetcher, registry: Registry, docker_config: Path, *, wants_basic: bool
) -> None:
    registry.account, registry.token_uses, registry.wants_basic = ACCOUNT, 100, wants_basic
    with pytest.raises(SourceError, match=r"is not public: put credentials into \$DOCKER_CONFIG"):
        await fetcher.fetch(f"{registry.uri}:v1")
    log_in(docker_config, registry, "me:wrong-password")
    with pytest.raises(SourceError, match=r"refuses the credentials of \$DOCKER_CONFIG") as caught:
        await fetcher.fetch(f"{registry.uri}:v1")
    assert "wrong-password" not in told(fetcher, caught.value)


async def test_a_configuration_that_is_none_is_named(
    fetcher: Fetcher, registry: Registry, docker_config: Path
) -> None:
    write(docker_config, "{")
    with pytest.raises(SourceError, match=r"config\.json can't be read: it should be the JSON"):
        await fetcher.fetch(f"{registry.uri}:v1")


@pytest.mark.parametrize(
    ("host", "scheme"),
    [
        ("registry.example.com", "https"),
        ("registry.example.com:5000", "https"),
        ("registry.lan:5000", "http"),
        ("localhost:5000", "http"),
        ("LocalHost:5000", "http"),
        ("127.0.0.2", "http"),
        ("127.0.0.1.example.com", "https"),
        ("localhost.example.com", "https"),
        ("[::1]:5000", "http"),
    ],
)
def test_only_this_machine_and_named_registries_are_asked_by_http(
    host: str, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_OCI_PLAIN_HTTP", "other.lan, registry.lan:5000")
    assert OciSource(OciImage(host, "m"))._origin.scheme == scheme


async def test_a_realm_of_no_address_is_refused(fetcher: Fetcher, registry: Registry) -> None:
    registry.token_uses, registry.realm = 1, "ftp://host/token"
    with pytest.raises(SourceError, match="names no safe address of a token service"):
        await fetcher.fetch(f"{registry.uri}:v1")


async def test_what_is_not_there_is_named(fetcher: Fetcher, registry: Registry) -> None:
    with pytest.raises(SourceError, match=r"has no oci://.*/org/m:v2: check .*\(MANIFEST_UNKNOWN\)"):
        await fetcher.fetch(f"{registry.uri}:v2")
    registry.faults.append(lambda _: web.Response(status=403))
    with pytest.raises(SourceError, match="the credentials may not pull"):
        await fetcher.fetch(f"{registry.uri}:v1")


def move_at_first_blob(registry: Registry, contents: dict[str, bytes], *, keeps_old: bool) -> None:
    """Let the tag name other files as soon as a blob is asked for."""

    def move(request: web.Request) -> None:
        if "/blobs/" in request.path:
            registry.faults.clear()
            if not keeps_old:
                registry.blobs.contents.clear()
            registry.push_files(contents)

    registry.faults.append(move)


@pytest.mark.parametrize("keeps_old", [True, False], ids=["old blobs", "no old blobs"])
async def test_a_tag_that_moves_under_way_mixes_no_two_models(
    fetcher: Fetcher, registry: Registry, contents: dict[str, bytes], *, keeps_old: bool
) -> None:
    first = f"sha256:{hashlib.sha256(registry.manifests['v1']).hexdigest()}"
    later = contents | {name: bytes(reversed(contents[name])) for name in (*SHARDS, "config.json")}
    move_at_first_blob(registry, later, keeps_old=keeps_old)
    if keeps_old:
        assert (await fetcher.fetch(f"{registry.uri}:v1")).marker.revision == first
        fetcher.check(contents)
    else:
        with pytest.raises(SourceError, match="no longer has"):
            await fetcher.fetch(f"{registry.uri}:v1")
        assert not fetcher.is_marked()
    assert (await fetcher.fetch(f"{registry.uri}:v1")).marker.revision != first
    fetcher.check(later)


async def test_bytes_that_are_not_those_of_the_digest_get_no_name(
    fetcher: Fetcher, registry: Registry, contents: dict[str, bytes]
) -> None:
    digest = f"sha256:{hashlib.sha256(contents[SHARDS[1]]).hexdigest()}"
    registry.blobs.contents[digest] = contents[SHARDS[1]][:-1] + b"!"
    with pytest.raises(CorruptError, match=f"{SHARDS[1]} has sha256 .* twice"):
        await fetcher.fetch(f"{registry.uri}:v1")
    assert SHARDS[1] not in fetcher.names()


async def test_a_manifest_that_is_not_that_of_the_digest_is_refused(
    fetcher: Fetcher, registry: Registry
) -> None:
    registry.manifests["sha256:" + "0" * 64] = registry.manifests["v1"]
    with pytest.raises(CorruptError, match=r"the manifest of oci://.* has another checksum than announced"):
        await fetcher.fetch(f"{registry.uri}@sha256:{'0' * 64}")


@pytest.mark.parametrize(
    ("manifest", "told"),
    [
        ({"mediaType": "?"}, "lists no layers"),
        ({"mediaType": "?", "layers": [{"digest": "sha512:" + "0" * 128, "size": 1}]}, "only sha256"),
        ({"mediaType": "?", "layers": [{"digest": "sha256:../../x", "size": 1}]}, "only sha256"),
        (
            {"mediaType": "?", "layers": [{"digest": "sha256:" + "0" * 64, "size": 1}]},
            "which can't be served: push config.json",
        ),
        ({"mediaType": "?", "manifests": []}, "names no image"),
    ],
)
async def test_a_manifest_that_is_no_models_is_refused(
    fetcher: Fetcher, registry: Registry, manifest: dict[str, object], told: str
) -> None:
    registry.put(manifest, "bad")
    with pytest.raises(SourceError, match=told):
        await fetcher.fetch(f"{registry.uri}:bad")


async def test_a_title_that_leaves_the_folder_is_refused(
    fetcher: Fetcher, registry: Registry, contents: dict[str, bytes]
) -> None:
    escaping = "additional_chat_templates/../../../x.jinja"
    layers = [(content, FILE, {TITLE: name}) for name, content in (contents | {escaping: b"x"}).items()]
    registry.push(layers, "bad")
    with pytest.raises(Exception, match="leaves its folder"):
        await fetcher.fetch(f"{registry.uri}:bad")
    assert not any(name.endswith("x.jinja") for name in fetcher.names())


async def test_a_registry_that_hangs_is_given_up(
    fetcher: Fetcher, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_TIMEOUT", ClientTimeout(total=None, sock_read=0.05))
    handle = registry._send

    async def hang(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(1)
        return await handle(request)

    registry.blobs.answer = lambda request, _: hang(request)  # type: ignore[method-assign]
    with pytest.raises(UnavailableError, match="no answer in time, 6 times in a row"):
        await fetcher.fetch(f"{registry.uri}:v1")


async def test_a_busy_registry_is_waited_for(
    fetcher: Fetcher, registry: Registry, contents: dict[str, bytes]
) -> None:
    registry.faults.append(once(lambda: web.Response(status=429, headers={"Retry-After": "0"}), 3))
    registry.blobs.cuts[f"sha256:{hashlib.sha256(contents[SHARDS[0]]).hexdigest()}"] = 2
    await fetcher.fetch(f"{registry.uri}:v1")
    fetcher.check(contents)


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_token_service_is_waited_for(
    fetcher: Fetcher, registry: Registry, contents: dict[str, bytes], status: int
) -> None:
    registry.token_uses = 8
    registry.realm_faults.append(once(lambda: web.Response(status=status, headers={"Retry-After": "0"}), 3))
    await fetcher.fetch(f"{registry.uri}:v1")
    fetcher.check(contents)
    assert any(f"/token answered {status}; retrying in" in text for text in fetcher.witness.said)


@pytest.mark.parametrize("status", [501, 505])
async def test_a_token_service_that_can_give_none_is_not_asked_again(
    fetcher: Fetcher, registry: Registry, status: int
) -> None:
    registry.token_uses = 8
    registry.realm_faults.append(lambda _: web.Response(status=status))
    with pytest.raises(SourceError, match=f"/token answered {status}$"):
        await fetcher.fetch(f"{registry.uri}:v1")
    assert fetcher.witness.said == []


async def test_a_kill_costs_no_more_than_was_not_noted(fetcher: Fetcher) -> None:
    contents = make_model(20 << 20)
    async with Registry() as registry:
        registry.push_files(contents)
        registry.token_uses = 100
        registry.blobs.bytes_per_second = 8e6
        process = await start_fetch(f"{registry.uri}:v1", fetcher.folder, "--connections", "1")
        journal = fetcher.folder / ".millrace" / "parts" / f"{SHARDS[0]}.journal"
        await until(lambda: journal.exists() and '"done": [8388608' in journal.read_text())
        process.kill()
        await process.communicate()
        registry.blobs.sent.clear()
        registry.blobs.bytes_per_second = None
        status, out, err = await finish(await start_fetch(f"{registry.uri}:v1", fetcher.folder))
        digest = f"sha256:{hashlib.sha256(contents[SHARDS[0]]).hexdigest()}"
        assert (status, registry.blobs.sent[digest]) == (0, (20 << 20) - 2 * NOTE_BYTES), err
    fetcher.check(contents, NEEDED)
    assert "secret" not in out + err
