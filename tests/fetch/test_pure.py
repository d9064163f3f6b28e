"""URIs, names, selection, ranges, waits and the meter: no I/O."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_fetch.cli.progress_output import Meter
from millrace_fetch.errors import SourceError, UnsafeNameError, UsageError
from millrace_fetch.plan.manifest import CRCS, Checksum, Crc, RemoteFile
from millrace_fetch.plan.selection import read_shards, select
from millrace_fetch.plan.unsafe_names import MAX_FILES, check_names
from millrace_fetch.plan.uri import HubModel, OciImage, S3Folder, WebFolder, parse_uri, redact
from millrace_fetch.transfer.client import find_origin, read_retry_after, read_url
from millrace_fetch.transfer.ranges import Span, find_frontier, find_missing, merge, split
from millrace_fetch.transfer.retry import plan_wait
from millrace_fit.units import show_bytes, show_seconds
from tests.fetch.conftest import INDEX, NEEDED, SHARDS, make_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
DIGEST = f"sha256:{'0' * 64}"
SPANS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)).map(lambda p: Span(p[0], p[0] + p[1])))


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("hf://org/name", HubModel("org/name")),
        ("hf://gpt2", HubModel("gpt2")),
        ("hf://org/na.me-1_x@v1.0", HubModel("org/na.me-1_x", "v1.0")),
        ("hf://org/name@refs/pr/1", HubModel("org/name", "refs/pr/1")),
        ("https://h/a/b/", WebFolder("https://h/a/b/")),
        ("s3://bucket", S3Folder("bucket")),
        ("oci://registry.example.com/org/m:v1", OciImage("registry.example.com", "org/m", "v1")),
        (f"oci://[::1]:5000/m@{DIGEST}", OciImage("[::1]:5000", "m", DIGEST)),
        (f"oci://h/a_b/c--d.e:v1@{DIGEST}", OciImage("h", "a_b/c--d.e", DIGEST)),
        ("oci://h/m", OciImage("h", "m", "latest")),
        ("s3://bucket/a/b", S3Folder("bucket", "a/b/")),
        ("s3://my.bucket-1/a b/?/", S3Folder("my.bucket-1", "a b/?/")),
        ("http://u:p@h:8/a?sig=1", WebFolder("http://u:p@h:8/a/", "sig=1")),
    ],
)
def test_a_uri_is_read(text: str, uri: object) -> None:
    assert parse_uri(text) == uri


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("org/name", "is no URI: write hf://org/name"),
        ("gs://bucket/key", "models of gs:// can't be fetched: write hf://org/name.* s3://bucket/folder"),
        ("pvc://claim/path", "nothing to fetch: write it into spec.model.uri"),
        ("oci://", "names no registry: write oci://registry/repository:tag"),
        ("oci://me:secret@h/m", "the URI names no registry.*, and credentials nowhere in it"),
        ("oci://h/", "is no repository of a registry"),
        ("oci://h/M:v1", "is no repository of a registry"),
        ("oci://h/../m:v1", "is no repository of a registry"),
        ("oci://h/m:", "is no tag"),
        ("oci://h/m@v1", "is no digest: write sha256:"),
        ("oci://h/m@", "is no digest"),
        ("s3://", "names no bucket: write s3://bucket/folder"),
        ("s3:///folder", "names no bucket"),
        ("s3://key:secret@bucket/folder", "the URI names no bucket.*, and credentials nowhere in it"),
        ("s3://bucket/a\nb", "is no folder of a bucket"),
        ("file:///models/m", "nothing to fetch: use the folder as it is"),
        ("hf://", "is no repository"),
        ("hf://a/b/c", "is no repository"),
        ("hf://../b", "is no repository"),
        ("hf://a/b@", "is no revision"),
        ("hf://a/b@x/../y", "is no revision"),
        ("https:///folder", "names no host"),
        ("https://h:x/folder", "names no host"),
        ("https://h/a b", "names no host"),
    ],
)
def test_what_is_no_uri_says_what_to_write(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        parse_uri(text)


def test_only_a_commit_or_a_digest_is_pinned() -> None:
    assert HubModel("a/b", COMMIT).pinned == COMMIT
    assert HubModel("a/b", "main").pinned is None
    assert OciImage("h", "m", DIGEST).pinned == DIGEST
    assert OciImage("h", "m", "v1").pinned is None


def test_what_is_secret_in_a_url_is_not_shown() -> None:
    assert redact("https://user:pass@h:1/a?sig=x") == "https://h:1/a?…"
    assert "pass" not in str(WebFolder("http://u:pass@h/a/", "sig=1"))


@pytest.mark.parametrize(
    "name",
    [
        "/etc/x",
        "../x",
        "a/../../x",
        "a//b",
        "",
        "a/",
        "./a",
        "a\\b",
        "a\nb",
        "a\0b",
        "é\u202eb",
        ".millrace/lock",
        "x" * 241,
        "/".join(["x" * 200] * 6),
    ],
)
def test_a_name_that_can_do_harm_is_refused(name: str) -> None:
    with pytest.raises(UnsafeNameError, match="refused"):
        check_names([name])


def test_names_that_cannot_be_together_are_refused() -> None:
    check_names(["a/b.json", "a/c.json", "config.json"])
    with pytest.raises(UnsafeNameError, match="both a file and a folder"):
        check_names(["a/b/c", "a"])
    with pytest.raises(UnsafeNameError, match="more than 10000"):
        check_names([f"{number}" for number in range(MAX_FILES + 1)])


def test_the_index_decides_which_weights_come() -> None:
    contents = make_model()
    assert set(select(contents, SHARDS)) == set(NEEDED)
    assert select(contents, SHARDS)[0] == "config.json"
    assert read_shards(contents[INDEX]) == set(SHARDS)


def test_without_an_index_the_usual_file_comes_else_all_of_the_folder() -> None:
    names = ["config.json", "a.safetensors", "consolidated.safetensors", "original/b.safetensors"]
    assert select(names, None) == ["config.json", "a.safetensors"]
    assert select([*names, "model.safetensors"], None) == ["config.json", "model.safetensors"]
    assert select(["config.json", "consolidated.safetensors"], None) == names[:1] + names[2:3]


def test_what_is_no_servable_model_says_so() -> None:
    with pytest.raises(SourceError, match=r"no config\.json"):
        select(["model.safetensors"], None)
    with pytest.raises(SourceError, match=r"no \*\.safetensors"):
        select(["config.json", "pytorch_model.bin"], None)
    with pytest.raises(SourceError, match="the model is incomplete"):
        select(["config.json", INDEX], SHARDS)
    for bad in (b"", b"[]", b"{}", b'{"weight_map": {}}', b'{"weight_map": {"a": 1}}', b"\xff"):
        with pytest.raises(SourceError, match="no weight_map"):
            read_shards(bad)


@given(SPANS)
def test_ranges_are_counted_as_sets_of_bytes_are(spans: list[Span]) -> None:
    size = 80
    done = {byte for span in spans for byte in range(*span)}
    assert {byte for span in merge(spans) for byte in range(*span)} == done
    missing = list(find_missing(size, spans))
    assert {byte for span in missing for byte in range(*span)} == set(range(size)) - done
    assert find_frontier(spans) == next(byte for byte in range(size) if byte not in done)
    pieces = [piece for span in missing for piece in split(span, 7)]
    assert merge(pieces) == missing
    assert all(0 < piece.num_bytes <= 7 for piece in pieces)


@pytest.mark.parametrize("algorithm", CRCS)
def test_a_crc_tells_no_two_files_apart_where_an_etag_does(algorithm: Crc) -> None:
    """Two fine-tunes have the same size, and 32 bits are few."""
    crc, sha256 = Checksum(algorithm, "00000000"), Checksum("sha256", "0" * 64)
    first, second = (RemoteFile("m", "u", 1, crc, etag) for etag in ("a", "b"))
    assert first.identity != second.identity
    assert RemoteFile("m", "u", 1, sha256, "a").identity == RemoteFile("m", "u", 1, sha256, "b").identity


def test_waits_grow_are_spread_and_heed_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace_fetch.transfer.retry._FIRST_SECONDS", 0.5)
    assert [plan_wait(failures, None, 0.0) for failures in (1, 2, 3)] == [0.25, 0.5, 1.0]
    assert plan_wait(30, None, 0.999) < 30
    assert plan_wait(1, 12.0, 0.0) == 12.25
    assert plan_wait(1, 3600.0, 0.0) == 3600.25
    assert plan_wait(1, 3601.0, 0.0) is plan_wait(1, 9e9, 0.0) is None


def test_an_address_has_the_host_that_is_compared_and_the_path_that_was_written() -> None:
    url = read_url("HTTPS://u:p@Bücher.Example:443/a%2Fb?x=%2B#there")
    assert str(url) == "https://u:p@xn--bcher-kva.example/a%2Fb?x=%2B"
    assert (
        url.origin() == find_origin("https://bücher.example/m") == find_origin("https://BÜCHER.EXAMPLE:443")
    )
    assert url.origin() != find_origin("https://bucher.example")


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("hub.lan", "hub.lan"),
        ("hub.lan:8080", "hub.lan:8080"),
        ("hub.lan/hf", "hub.lan/hf"),
        ("me:secret@hub.lan/hf?sig=secret", "hub.lan/hf?…"),
        ("https:/me:secret@hub.lan", "hub.lan"),
        ("ftp://me:secret@hub.lan", "ftp://hub.lan"),
        ("https://", "https://"),
        ("", ""),
    ],
)
def test_an_address_that_no_request_can_have_is_told_as_it_was_written(address: str, shown: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_origin(address, "HF_ENDPOINT")
    assert str(caught.value) == f"HF_ENDPOINT: '{shown}' names no host: write https://host"
    with pytest.raises(UsageError, match=f"^'{re.escape(shown)}' names no host"):
        find_origin(address)


def test_retry_after_may_be_a_number_or_a_date() -> None:
    assert read_retry_after("7", 0) == 7
    assert read_retry_after("9" * 400, 0) == 1e9
    assert read_retry_after("Thu, 01 Jan 1970 00:01:00 GMT", 50) == 10
    assert read_retry_after("soon", 0) is read_retry_after(None, 0) is None


def test_a_line_is_told_every_tenth_and_every_half_minute() -> None:
    meter = Meter(1000, 0, 0.0)
    assert meter.advance(50, 1.0) is None
    assert meter.advance(60, 2.0) == "11 %, 110 B of 1.0 kB, 55 B/s, 16s left"
    assert meter.advance(10, 3.0) is None
    assert meter.advance(10, 33.0) == "13 %, 130 B of 1.0 kB, 4 B/s, 3m41s left"
    assert meter.advance(870, 40.0) == "100 %, 1.0 kB of 1.0 kB, 25 B/s"
    assert (show_bytes(2.5e9), show_seconds(7300)) == ("2.5 GB", "2h01m")


def test_a_line_about_a_model_of_unknown_size_has_no_percents() -> None:
    meter = Meter(None, 0, 0.0)
    assert meter.advance(10**9, 5.0) is None
    assert meter.advance(10**9, 30.0) == "2.0 GB, 66.7 MB/s"


def test_a_shard_that_the_index_names_twice_comes_once() -> None:
    index = json.dumps({"weight_map": {"a": "m.safetensors", "b": "m.safetensors"}}).encode()
    assert select(["config.json", INDEX, "m.safetensors"], read_shards(index))[-1] == "m.safetensors"
