import asyncio
import base64
import hashlib
import json
import os
import zlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import botocore.session
import pytest
from aiohttp import web

from millrace_fetch.cli.remote_model import fetch_head
from millrace_fetch.errors import CorruptError, SourceError, UnavailableError, UnsafeNameError, UsageError
from millrace_fetch.sources import aws
from testing.model_sources.processes import finish, start_fetch, until
from testing.model_sources.s3_server import ACCOUNT, KEY_ID, SECRET, Bucket, S3Server, refuse, running_moto
from testing.model_sources.servers import Fault, Server, once
from tests.fetch.certificates import certify
from tests.fetch.conftest import INDEX, NEEDED, SHARDS, Fetcher, make_model

URI = "s3://models/org/m"
OTHERS = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_CA_BUNDLE")


@pytest.fixture(scope="module")
def owned() -> Iterator[Bucket]:
    with running_moto() as bucket:
        yield bucket


@pytest.fixture
def moto(owned: Bucket) -> str:
    return owned.endpoint


@cache
def make_client(endpoint: str) -> Any:
    """Made once, which takes longer than a test."""
    session = botocore.session.Session()
    return session.create_client("s3", "us-east-1", endpoint_url=endpoint)


def put(bucket: Bucket, name: str, content: bytes, **more: str) -> None:
    """As its owner does, over HTTP."""
    make_client(bucket.endpoint).put_object(Bucket="models", Key=f"org/m/{name}", Body=content, **more)


def put_in_parts(bucket: Bucket, name: str, content: bytes) -> None:
    """As the AWS command line does with a large file: in two parts, with a CRC64NVME of the whole."""
    client, where = make_client(bucket.endpoint), {"Bucket": "models", "Key": f"org/m/{name}"}
    whole = {"ChecksumAlgorithm": "CRC64NVME", "ChecksumType": "FULL_OBJECT"}
    upload = client.create_multipart_upload(**where, **whole)["UploadId"]
    parts = []
    for number, part in enumerate((content[: 5 << 20], content[5 << 20 :]), 1):
        sent = client.upload_part(**where, UploadId=upload, PartNumber=number, Body=part)
        parts.append({"PartNumber": number, "ETag": sent["ETag"]})
    client.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": parts})


def list_objects(bucket: Bucket) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = make_client(bucket.endpoint).list_objects_v2(Bucket="models")["Contents"]
    return found


@pytest.fixture(autouse=True)
def _account(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OTHERS:
        monkeypatch.delenv(name, raising=False)
    for name, value in ACCOUNT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def contents() -> dict[str, bytes]:
    return make_model()


@pytest.fixture(autouse=True)
def bucket(owned: Bucket, contents: dict[str, bytes], _account: None) -> Bucket:
    owned.fill(contents)
    return owned


@pytest.fixture
async def s3(moto: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[S3Server]:
    async with S3Server(moto) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        yield server


def said(fetcher: Fetcher, error: Exception | None = None) -> str:
    """All that anybody was told, or that is stored."""
    stored = [path.read_text(errors="replace") for path in (fetcher.folder / ".millrace").rglob("*.j*")]
    return "\n".join([*fetcher.witness.said, *stored, str(error)])


async def test_a_folder_comes_whole_and_once(
    fetcher: Fetcher, s3: S3Server, contents: dict[str, bytes]
) -> None:
    outcome = await fetcher.fetch(URI)
    fetcher.check(contents)
    assert outcome.marker.source == "s3://models/org/m/"
    assert set(s3.signatures) == {KEY_ID}
    s3.requests.clear()
    assert not (await fetcher.fetch(f"{URI}/")).has_fetched
    assert s3.num_lists() == len(s3.requests) == 1
    assert SECRET not in said(fetcher)


async def test_a_bucket_of_a_private_authority_is_listed_and_fetched(
    fetcher: Fetcher, tmp_path: Path, contents: dict[str, bytes], moto: str
) -> None:
    certificate, context = certify(tmp_path, "bucket")
    async with S3Server(moto, context) as server:
        environment = {"AWS_ENDPOINT_URL": server.endpoint}
        uri, folder = "s3://models/org/m", fetcher.folder
        status, _, err = await finish(await start_fetch(uri, folder, **environment))
        assert (status, "the key ca.crt of the Secret of spec.model.credentials" in err) == (3, True)
        flags = ("--ca-file", str(certificate))
        environment["AWS_CA_BUNDLE"] = str(certify(tmp_path, "another")[0])
        status, _, err = await finish(await start_fetch(uri, folder, *flags, **environment))
        assert status == 0, err
        fetcher.check(contents)


async def test_an_endpoint_in_capital_letters_is_signed_for_too(
    fetcher: Fetcher, s3: S3Server, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint.replace("127.0.0.1", "LocalHost"))
    await fetcher.fetch(URI)
    fetcher.check(contents)
    assert set(s3.signatures) == {KEY_ID}


async def test_a_public_bucket_needs_no_credentials(
    fetcher: Fetcher, s3: S3Server, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    await fetcher.fetch(URI)
    fetcher.check(contents)
    assert set(s3.signatures) == {None}


@pytest.mark.usefixtures("s3")
async def test_keys_of_any_characters_are_signed_as_they_are_sent(
    fetcher: Fetcher, bucket: Bucket, contents: dict[str, bytes]
) -> None:
    odd = "additional_chat_templates/a+b&c=ü%20?#~(1).jinja"
    put(bucket, odd, b"law")
    await fetcher.fetch(URI)
    fetcher.check(contents | {odd: b"law"}, [*NEEDED, odd])


async def test_a_listing_of_many_pages_is_read_to_its_end(
    fetcher: Fetcher, s3: S3Server, bucket: Bucket, contents: dict[str, bytes]
) -> None:
    for number in range(1100):
        bucket.put(f"org/m/a/{number}.json", b"{}")
    await fetcher.fetch(URI)
    fetcher.check(contents)
    assert s3.num_lists() == 2


@pytest.mark.usefixtures("s3")
async def test_only_the_folder_itself_is_looked_at(
    fetcher: Fetcher, bucket: Bucket, contents: dict[str, bytes]
) -> None:
    put(bucket, "../m-other/config.json", b"{}")
    await fetcher.fetch(URI)
    fetcher.check(contents)
    with pytest.raises(SourceError, match="no config"):
        await fetcher.fetch("s3://models/org")


@pytest.mark.usefixtures("s3")
async def test_a_key_that_leaves_the_folder_is_refused(fetcher: Fetcher, bucket: Bucket) -> None:
    bucket.put("org/m/additional_chat_templates/../../../x.jinja", b"escaped")
    with pytest.raises(UnsafeNameError, match="leaves its folder: refused"):
        await fetcher.fetch(URI)
    assert fetcher.names() == []


def corrupting(content: bytes, etag: str | None = None) -> Fault:
    """Send other bytes in the place of the first shard, with its size and its ETag."""
    headers = {"ETag": etag or f'"{hashlib.md5(content).hexdigest()}"'}

    def corrupt(request: web.Request) -> web.Response | None:
        is_shard = request.method == "GET" and request.path.endswith(SHARDS[0])
        return web.Response(body=b"x" * len(content), headers=headers) if is_shard else None

    return corrupt


@pytest.mark.parametrize("algorithm", ["SHA256", "CRC64NVME", "CRC32C", "CRC32"])
async def test_an_object_with_a_checksum_is_checked_by_it(
    fetcher: Fetcher, s3: S3Server, bucket: Bucket, contents: dict[str, bytes], algorithm: str
) -> None:
    put(bucket, SHARDS[0], contents[SHARDS[0]], ChecksumAlgorithm=algorithm)
    s3.faults.append(corrupting(contents[SHARDS[0]]))
    with pytest.raises(CorruptError, match=f"{SHARDS[0]} has {algorithm.lower()} .* twice"):
        await fetcher.fetch(URI)
    s3.faults.clear()
    await fetcher.fetch(URI)
    fetcher.check(contents)


@pytest.mark.parametrize(
    "headers",
    [
        {"x-amz-checksum-crc32": "AAAAAA==-3"},
        {"x-amz-checksum-crc32": "AAAAAA==", "x-amz-checksum-type": "COMPOSITE"},
        {"x-amz-checksum-crc32": "AAAAAAA="},
        {"x-amz-checksum-crc64nvme": "AAAAAAAAAAA=-3"},
        {"x-amz-checksum-crc64nvme": "AAAAAAAAAAA=", "x-amz-checksum-type": "COMPOSITE"},
        {"x-amz-checksum-crc64nvme": "AAAAAA=="},
        {"x-amz-checksum-xxhash128": "AAAAAA=="},
        {},
    ],
)
async def test_a_checksum_that_is_not_of_the_whole_object_counts_for_nothing(
    fetcher: Fetcher, s3: S3Server, bucket: Bucket, contents: dict[str, bytes], headers: dict[str, str]
) -> None:
    put(bucket, SHARDS[0], contents[SHARDS[0]], ChecksumAlgorithm="CRC32")
    s3.faults.append(lambda request: web.Response(headers=headers) if request.method == "HEAD" else None)
    await fetcher.fetch(URI)
    fetcher.check(contents)


@pytest.mark.parametrize("status", [403, 405, 501])
async def test_a_server_that_tells_no_checksum_by_head_serves_too(
    fetcher: Fetcher, s3: S3Server, contents: dict[str, bytes], status: int
) -> None:
    s3.faults.append(lambda request: web.Response(status=status) if request.method == "HEAD" else None)
    await fetcher.fetch(URI)
    fetcher.check(contents)
    assert fetcher.witness.said == []


async def test_an_object_uploaded_in_parts_is_checked_by_the_crc64nvme_of_the_whole(
    fetcher: Fetcher, s3: S3Server, bucket: Bucket, contents: dict[str, bytes]
) -> None:
    contents[SHARDS[0]] = bytes(5 << 20) + contents[SHARDS[0]]  # no part but the last may be smaller
    put_in_parts(bucket, SHARDS[0], contents[SHARDS[0]])
    etag = next(item for item in list_objects(bucket) if item["Key"].endswith(SHARDS[0]))["ETag"]
    assert etag.endswith('-2"')
    s3.faults.append(corrupting(contents[SHARDS[0]], etag))
    with pytest.raises(CorruptError, match=f"{SHARDS[0]} has crc64nvme .* twice"):
        await fetcher.fetch(URI)
    s3.faults.clear()
    await fetcher.fetch(URI)
    fetcher.check(contents)


async def fetch_a_half(fetcher: Fetcher) -> None:
    """End when a piece of the first shard has come."""
    fetching = asyncio.create_task(fetcher.fetch_order(replace(fetcher.order(URI), connections=1)))
    while fetcher.witness.done < 10_000:  # noqa: ASYNC110  the shard has more than all before it
        await asyncio.sleep(0.01)
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching


@pytest.mark.parametrize("is_right", [False, True])
@pytest.mark.parametrize("algorithm", ["CRC64NVME", "CRC32C", "CRC32"])
async def test_a_checksum_is_of_what_came_before_and_after_an_end(
    fetcher: Fetcher,
    s3: S3Server,
    bucket: Bucket,
    contents: dict[str, bytes],
    algorithm: str,
    *,
    is_right: bool,
) -> None:
    put(bucket, SHARDS[0], contents[SHARDS[0]], ChecksumAlgorithm=algorithm)
    s3.bytes_per_second = 1e6
    await fetch_a_half(fetcher)
    s3.bytes_per_second = None
    part = fetcher.folder / ".millrace" / "parts" / f"{SHARDS[0]}.part"
    num_done = part.stat().st_size
    assert 0 < num_done < len(contents[SHARDS[0]])
    if is_right:
        await fetcher.fetch(URI)
        assert ("GET", f"/models/org/m/{SHARDS[0]}", f"bytes={num_done}-99999") in s3.ranges
        assert fetcher.witness.said == []
    else:
        part.write_bytes(bytes(num_done))
        await fetcher.fetch(URI)
        assert f"{SHARDS[0]} has {algorithm.lower()}" in fetcher.witness.said[0]
    fetcher.check(contents)


async def test_only_objects_that_are_fetched_are_asked_for_a_checksum(
    fetcher: Fetcher, s3: S3Server, bucket: Bucket
) -> None:
    """Tools of today write one with each object, and a folder may have thousands below it."""
    put(bucket, "checkpoint-1/a.json", b"{}", ChecksumAlgorithm="CRC32")
    await fetcher.fetch(URI)
    asked = {path.partition("?")[0] for method, path in s3.requests if method == "HEAD"}
    assert asked == {f"/models/org/m/{name}" for name in NEEDED}


async def test_a_checksum_counts_also_in_a_sub_folder_and_where_the_listing_does_not_tell_of_it(
    fetcher: Fetcher, s3: S3Server, bucket: Bucket
) -> None:
    name, content = f"weights/{SHARDS[0]}", b"w" * 5000
    bucket.fill(
        {"config.json": b"{}", INDEX: json.dumps({"weight_map": {"a": name}}).encode(), name: content}
    )
    crc = base64.b64encode(zlib.crc32(content).to_bytes(4)).decode()

    def tell(request: web.Request) -> web.Response | None:
        is_asked = request.method == "HEAD" and request.path.endswith(name)
        return web.Response(headers={"x-amz-checksum-crc32": crc}) if is_asked else None

    s3.faults += [tell, corrupting(content)]
    with pytest.raises(CorruptError, match=f"{name} has crc32 .* twice"):
        await fetcher.fetch(URI)
    s3.faults.pop()
    await fetcher.fetch(URI)


@pytest.mark.parametrize("algorithm", ["SHA256", "CRC32"])
async def test_what_is_read_to_look_at_a_model_is_checked_too(
    fetcher: Fetcher, s3: S3Server, bucket: Bucket, algorithm: str
) -> None:
    put(bucket, "config.json", b'{"model_type": "llama"}', ChecksumAlgorithm=algorithm)

    def corrupt(request: web.Request) -> web.Response | None:
        is_config = request.method == "GET" and request.path.endswith("/config.json")
        return web.Response(body=b'{"model_type": "other"}') if is_config else None

    s3.faults.append(corrupt)
    order = fetcher.order(URI)
    with pytest.raises(CorruptError, match=r"config\.json has another checksum than announced"):
        await fetch_head(fetcher.open_source(order), fetcher.witness.say)


async def test_a_server_that_answers_no_heads_serves_too(
    fetcher: Fetcher, s3: S3Server, contents: dict[str, bytes]
) -> None:
    s3.faults.append(lambda request: web.Response(status=405) if request.method == "HEAD" else None)
    await fetcher.fetch(URI)
    fetcher.check(contents)


async def test_an_object_that_changes_under_way_makes_it_look_again(
    fetcher: Fetcher, s3: S3Server, bucket: Bucket, contents: dict[str, bytes]
) -> None:
    later = make_model(120_000)[SHARDS[1]]

    def change(request: web.Request) -> None:
        if request.method == "GET" and request.path.endswith(SHARDS[1]):
            s3.faults.clear()
            bucket.put(f"org/m/{SHARDS[1]}", later)

    s3.faults.append(change)
    await fetcher.fetch(URI)
    fetcher.check(contents | {SHARDS[1]: later})
    assert fetcher.witness.said == [f"{SHARDS[1]} changed during the fetch; resolving the model again"]


@pytest.mark.parametrize(
    ("status", "code", "told"),
    [
        (404, "NoSuchBucket", "no such bucket: check its name, and AWS_ENDPOINT_URL"),
        (403, "AccessDenied", "the credentials may not read s3://models/org/m/: they need"),
        (403, "InvalidAccessKeyId", "does not know the access key: check AWS_ACCESS_KEY_ID"),
        (403, "SignatureDoesNotMatch", "the secret does not belong to the access key"),
        (400, "ExpiredToken", "the credentials have expired: get new ones"),
        (403, "RequestTimeTooSkewed", "this machine's clock is wrong: set it"),
        (301, "PermanentRedirect", "in another region: write that region into AWS_REGION"),
        (404, "", "check AWS_ENDPOINT_URL"),
        (400, "Odd", "answered 400 Odd$"),
        (501, "NotImplemented", "answered 501 NotImplemented$"),
        (505, "", "answered 505$"),
    ],
)
async def test_a_refused_listing_says_what_to_do(
    fetcher: Fetcher, s3: S3Server, status: int, code: str, told: str
) -> None:
    s3.faults.append(lambda _: refuse(status, code))
    with pytest.raises(SourceError, match=told) as caught:
        await fetcher.fetch(URI)
    assert SECRET not in said(fetcher, caught.value)
    assert fetcher.witness.said == [], "nothing is tried again"


async def test_a_refused_object_says_what_to_do(fetcher: Fetcher, s3: S3Server) -> None:
    def deny(request: web.Request) -> web.Response | None:
        return refuse(403, "InvalidObjectState") if request.path.endswith(SHARDS[0]) else None

    s3.faults.append(deny)
    with pytest.raises(SourceError, match="it is archived: restore it first"):
        await fetcher.fetch(URI)


@pytest.mark.usefixtures("s3")
async def test_a_wrong_secret_is_told_and_not_shown(
    fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    with pytest.raises(SourceError, match="the secret does not belong to the access key") as caught:
        await fetcher.fetch(URI)
    assert "not-the-secret" not in said(fetcher, caught.value)


async def test_without_credentials_a_private_bucket_says_what_to_set(
    fetcher: Fetcher, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    s3.faults.append(lambda _: refuse(403, "AccessDenied"))
    with pytest.raises(SourceError, match="no credentials were found: set AWS_ACCESS_KEY_ID and"):
        await fetcher.fetch(URI)


async def test_a_busy_server_is_waited_for(
    fetcher: Fetcher, s3: S3Server, contents: dict[str, bytes]
) -> None:
    s3.faults.append(once(lambda: refuse(503, "SlowDown"), 4))
    await fetcher.fetch(URI)
    fetcher.check(contents)


async def test_a_busy_listing_is_asked_for_again_when_the_server_says(
    fetcher: Fetcher, s3: S3Server, contents: dict[str, bytes]
) -> None:
    def wait(_: web.Request) -> web.Response:
        s3.faults.clear()
        answer = refuse(429, "TooManyRequests")
        answer.headers["Retry-After"] = "1"
        return answer

    s3.faults.append(wait)
    await fetcher.fetch(URI)
    fetcher.check(contents)
    assert fetcher.witness.said == [f"{s3.endpoint} answered 429 TooManyRequests; retrying in 1.0 s"]


async def test_a_server_that_is_not_there_may_come_later(
    fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(UnavailableError, match=r"http://127\.0\.0\.1:9 can't be reached"):
        await fetcher.fetch(URI)


async def test_credentials_are_those_of_the_moment(
    fetcher: Fetcher, s3: S3Server, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Renewed:
        def __init__(self, *_: object) -> None:
            self.num_asked = 0

        def get_frozen_credentials(self) -> SimpleNamespace:
            self.num_asked += 1
            return SimpleNamespace(access_key=f"AKID{self.num_asked}", secret_key=SECRET, token="t")

    sign = aws.Bucket.sign
    renewed = Renewed()

    def sign_anew(bucket: aws.Bucket, *request: object) -> dict[str, str]:
        bucket._credentials = renewed
        return sign(bucket, *request)  # type: ignore[arg-type]

    monkeypatch.setattr(aws.Bucket, "sign", sign_anew)
    await fetcher.fetch(URI)
    fetcher.check(contents)
    assert len(set(s3.signatures) - {KEY_ID}) >= len(NEEDED)


async def test_a_kill_costs_no_more_than_was_not_noted(
    fetcher: Fetcher, s3: S3Server, bucket: Bucket
) -> None:
    contents = make_model(20 << 20)
    for name in SHARDS:
        put(bucket, name, contents[name], ChecksumAlgorithm="CRC32")
    s3.bytes_per_second = 8e6
    process = await start_fetch(URI, fetcher.folder, "--connections", "1")
    journal = fetcher.folder / ".millrace" / "parts" / f"{SHARDS[0]}.journal"
    await until(lambda: journal.exists() and '"done": [8388608' in journal.read_text())
    process.kill()
    await process.communicate()
    spans = [
        json.loads(line)["done"] for line in journal.read_text().splitlines() if line.startswith('{"done"')
    ]
    noted = sum(end - begin for begin, end in spans)
    s3.sent.clear()
    s3.bytes_per_second = None
    status, out, err = await finish(await start_fetch(URI, fetcher.folder))
    assert (status, s3.sent[SHARDS[0]]) == (0, (20 << 20) - noted), err
    fetcher.check(contents)
    assert SECRET not in out + err
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == SECRET


def let_assume_role(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    token = folder / "token"
    token.write_text("a-web-identity-token")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/models")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))


async def test_a_pod_role_gives_credentials(
    fetcher: Fetcher, s3: S3Server, moto: str, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    let_assume_role(monkeypatch, fetcher.folder.parent)
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", moto)
    s3.checks_signatures = False  # the secret is moto's
    await fetcher.fetch(URI)
    fetcher.check(contents)
    (key,) = set(s3.signatures)
    assert key
    assert key.startswith("ASIA")


@pytest.mark.usefixtures("s3")
async def test_a_token_service_of_roles_that_can_give_none_is_not_taken_for_one_that_refuses_the_role(
    fetcher: Fetcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def can_not(_: web.Request) -> web.Response:
        return web.Response(status=501)

    let_assume_role(monkeypatch, tmp_path)
    async with Server(can_not) as service:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", service.url)
        with pytest.raises(SourceError, match=r"STS answered 501$"):
            await fetcher.fetch(URI)
    assert fetcher.witness.said == []


@pytest.mark.parametrize(
    ("settings", "address"),
    [
        ({}, "https://models.s3.amazonaws.com/a/b%20c"),
        (
            {"AWS_REGION": "eu-west-3", "AWS_CONFIG_FILE": "path"},
            "https://s3.eu-west-3.amazonaws.com/models/a/b%20c",
        ),
        ({"AWS_REGION": "eu-west-3"}, "https://models.s3.eu-west-3.amazonaws.com/a/b%20c"),
        ({"AWS_DEFAULT_REGION": "cn-north-1"}, "https://models.s3.cn-north-1.amazonaws.com.cn/a/b%20c"),
        ({"AWS_ENDPOINT_URL_S3": "https://s3.example.com"}, "https://s3.example.com/models/a/b%20c"),
        (
            {"AWS_ENDPOINT_URL": "https://s3.example.com", "AWS_CONFIG_FILE": "virtual"},
            "https://models.s3.example.com/a/b%20c",
        ),
    ],
)
def test_a_bucket_has_its_usual_address(
    settings: dict[str, str], address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for style in ("path", "virtual"):
        (tmp_path / style).write_text(f"[default]\ns3 =\n  addressing_style = {style}\n")
    monkeypatch.chdir(tmp_path)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert aws.Bucket("models").url_of("a/b c") == address


def test_requests_go_to_the_buckets_own_region() -> None:
    bucket = aws.Bucket("models")
    bucket._follow("eu-west-3")
    assert bucket.url_of("a") == "https://models.s3.eu-west-3.amazonaws.com/a"
    headers = bucket.sign("GET", bucket.url_of("a"), {})
    assert "/eu-west-3/s3/aws4_request" in headers["Authorization"]


def test_settings_that_are_none_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "absent")
    with pytest.raises(SourceError, match=r"can't be used \(ProfileNotFound\): check the AWS_… variables"):
        aws.Bucket("models")


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
@pytest.mark.parametrize("address", ["s3.lan", "s3.lan:9000", "ftp://s3.lan"])
def test_an_endpoint_that_is_no_web_address_is_named(
    fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch, variable: str, address: str
) -> None:
    monkeypatch.setenv(variable, address)
    with pytest.raises(UsageError, match=rf"^{variable}: '{address}' names no host: write https://host$"):
        fetcher.open_source(fetcher.order(URI))
