"""The real command in a process of its own: killed, twice at once, and on a terminal."""

import asyncio
import os
import re
import subprocess
import sys
from asyncio.subprocess import Process
from pathlib import Path

import pytest
from aiohttp import web

from millrace_fetch.errors import UsageError
from millrace_fetch.fetch import open_source
from millrace_fetch.plan.uri import Order, parse_uri
from millrace_fetch.transfer.download import NOTE_BYTES
from testing.model_sources.processes import MILLRACE, Forked, execute_fetch, finish, start_fetch, until
from testing.model_sources.servers import FakeHub
from tests.fetch.certificates import certify
from tests.fetch.conftest import NEEDED, SHARDS, Fetcher, make_model

SHARD_BYTES = 20 << 20


BROKEN_PEM = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


async def start(hub: FakeHub, folder: Path, *flags: str, before: str = "", **environment: str) -> Forked:
    environment = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(folder.parent)} | environment
    return await start_fetch("hf://org/m", folder, *flags, before=before, **environment)


async def execute(hub: FakeHub, folder: Path, *flags: str, prefix: tuple[str, ...] = ()) -> Process:
    environment = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(folder.parent)}
    return await execute_fetch("hf://org/m", folder, *flags, prefix=prefix, **environment)


async def test_it_says_how_far_it_is_and_what_is_there(hub: FakeHub, fetcher: Fetcher) -> None:
    status, out, err = await finish(await execute(hub, fetcher.folder))
    assert status == 0, err
    assert out == f"fetched hf://org/m into {fetcher.folder}: 8 files, 205.1 kB, revision {hub.commit}\n"
    assert err.startswith("millrace fetch: fetching 205.1 kB\n")
    fetcher.check(hub.files.contents)
    status, out, err = await finish(await start(hub, fetcher.folder))
    assert (status, err) == (0, "")
    assert " already: 8 files" in out


@pytest.mark.slow
async def test_what_is_noted_is_not_fetched_again(fetcher: Fetcher) -> None:
    async with FakeHub(make_model(SHARD_BYTES)) as hub:
        hub.large.bytes_per_second = 8e6
        process = await start(hub, fetcher.folder, "--connections", "1")
        journal = fetcher.folder / ".millrace" / "parts" / f"{SHARDS[0]}.journal"
        await until(lambda: journal.exists() and '"done": [8388608' in journal.read_text())
        process.kill()
        await process.communicate()
        hub.large.sent.clear()
        hub.large.bytes_per_second = None
        status, _, err = await finish(await start(hub, fetcher.folder))
        assert (status, hub.large.sent[SHARDS[0]]) == (0, SHARD_BYTES - 2 * NOTE_BYTES), err
        fetcher.check(hub.files.contents)


async def test_sigterm_ends_it_and_keeps_what_came(fetcher: Fetcher) -> None:
    async with FakeHub(make_model(1 << 20)) as hub:
        hub.large.bytes_per_second = 4e5
        process = await start(hub, fetcher.folder)
        await until(lambda: bool(hub.large.sent[SHARDS[0]]))
        await asyncio.sleep(0.2)
        process.terminate()
        status, _, err = await finish(process)
        assert (status, err.splitlines()[-1]) == (
            143,
            "millrace fetch: stopped; the next run continues from here",
        )
        hub.large.bytes_per_second = None
        before = hub.large.sent[SHARDS[0]]
        assert (await finish(await start(hub, fetcher.folder)))[0] == 0
        assert hub.large.sent[SHARDS[0]] - before < 1 << 20
        fetcher.check(hub.files.contents)


async def test_the_second_of_two_waits_and_finds_it_whole(fetcher: Fetcher) -> None:
    async with FakeHub(make_model(1 << 20)) as hub:
        hub.large.bytes_per_second = 4e5
        first = await start(hub, fetcher.folder)
        await until((fetcher.folder / ".millrace" / "parts").exists)
        second = await start(hub, fetcher.folder)
        results = await asyncio.gather(finish(first), finish(second))
    assert [status for status, _, _ in results] == [0, 0]
    assert "another millrace fetch writes" in results[1][2]
    assert " already: " in results[1][1]
    assert hub.large.sent[SHARDS[0]] == len(hub.files.contents[SHARDS[0]])


async def test_it_goes_through_the_proxy_of_the_environment(hub: FakeHub, fetcher: Fetcher) -> None:
    asked = {"HF_ENDPOINT": "http://hub.invalid", "HTTP_PROXY": hub.endpoint, "NO_PROXY": "127.0.0.1"}
    status, _, err = await finish(await start(hub, fetcher.folder, **asked))
    assert status == 0, err
    fetcher.check(hub.files.contents)


async def test_the_token_goes_before_a_netrc_of_the_same_host(hub: FakeHub, fetcher: Fetcher) -> None:
    hub.token = "hf_secret"
    netrc = fetcher.folder.parent / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password mine\n")
    status, _, err = await finish(await start(hub, fetcher.folder, HF_TOKEN=hub.token, NETRC=str(netrc)))
    assert status == 0, err
    assert "Bearer hf_secret" not in hub.large.authorizations


async def test_it_trusts_the_certificates_that_it_is_told_to(fetcher: Fetcher, tmp_path: Path) -> None:
    certificate, context = certify(tmp_path, "hub")
    async with FakeHub(make_model(), context) as hub:
        status, _, err = await finish(await start(hub, fetcher.folder, SSL_CERT_FILE=str(certificate)))
        assert status == 0, err
        fetcher.check(hub.files.contents)
        status, _, err = await finish(await start(hub, fetcher.folder))
        assert (status, len(err.splitlines())) == (3, 1)
        assert (
            "its certificate is not trusted; name the trusted authorities in SSL_CERT_FILE or --ca-file"
            in err
        )


async def test_a_file_of_authorities_is_trusted_beside_the_others(tmp_path: Path) -> None:
    (known, context), (private, other) = certify(tmp_path, "known"), certify(tmp_path, "private")
    flags = ("--ca-file", str(private))
    for one in (context, other):
        async with FakeHub(make_model(), one) as hub:
            folder = tmp_path / f"{id(one)}"
            status, _, err = await finish(await start(hub, folder, *flags, SSL_CERT_FILE=str(known)))
            assert status == 0, err


@pytest.mark.parametrize("text", ["", "no certificate", BROKEN_PEM])
async def test_a_file_without_authorities_is_refused_by_name(
    hub: FakeHub, fetcher: Fetcher, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "ca.crt"
    path.write_text(text)
    status, _, err = await finish(await start(hub, fetcher.folder, "--ca-file", str(path)))
    assert (status, len(err.splitlines())) == (3, 1)
    assert f"{path} has no certificates" in err
    assert not hub.files.requests


async def test_a_file_of_authorities_may_have_comments(fetcher: Fetcher, tmp_path: Path) -> None:
    certificate, context = certify(tmp_path, "hub")
    certificate.write_text(f"# Főtanúsítvány\n{certificate.read_text()}", encoding="utf-8")
    async with FakeHub(make_model(), context) as hub:
        status, _, err = await finish(await start(hub, fetcher.folder, "--ca-file", str(certificate)))
        assert status == 0, err


async def test_a_file_of_authorities_that_does_not_exist_changes_nothing(
    hub: FakeHub, fetcher: Fetcher, tmp_path: Path
) -> None:
    status, _, err = await finish(await start(hub, fetcher.folder, "--ca-file", str(tmp_path / "ca.crt")))
    assert status == 0, err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["gs://b/k", "--to", "x"], "models of gs:// can't be fetched: write hf://"),
        (["hf://org/m", "--to", "x", "--connections", "0"], "is no number from 1 to 64"),
        (["hf://org/m"], "one of the arguments --to --resolve is required"),
    ],
)
def test_bad_usage_exits_with_2(arguments: list[str], told: str) -> None:
    done = subprocess.run([MILLRACE, "fetch", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert told in done.stderr


def test_it_loads_no_torch() -> None:
    heavy = "{'torch', 'kopf', 'millrace_runtime.replica'}"
    code = f"import sys, millrace_fetch.cli.command; print({heavy} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_needed_is_what_the_documentation_lists() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "commands.md"
    text = page.read_text().partition("**Which files.**")[2]
    assert all(f"`{name}`" in text for name in NEEDED if name.startswith(("config", "generation", "model.")))


async def test_sigterm_ends_it_at_once_while_the_hub_hangs(hub: FakeHub, fetcher: Fetcher) -> None:
    hub.hangs = True
    process = await start(hub, fetcher.folder)
    await until(lambda: hub.num_api_requests > 0)
    process.terminate()
    async with asyncio.timeout(2):
        status, _, _ = await finish(process)
    assert status == 143


@pytest.mark.parametrize(("answer", "status"), [(401, 3), (404, 3), (503, 1)])
async def test_the_status_says_whether_to_try_again(
    hub: FakeHub, fetcher: Fetcher, answer: int, status: int
) -> None:
    hub.api_faults.append(lambda _: web.Response(status=answer, headers={"Retry-After": "0"}))
    ended, _, err = await finish(await start(hub, fetcher.folder, before=_QUICK))
    # As a word: the hub's port may hold these digits.
    named = re.search(rf"\b{answer}\b", err)
    assert (ended, named is not None) == (status, status == 1), err


_QUICK = "import millrace_fetch.transfer.retry; millrace_fetch.transfer.retry._FIRST_SECONDS = 0.01"


async def test_a_redirect_from_https_to_http_is_refused(fetcher: Fetcher, tmp_path: Path) -> None:
    certificate, context = certify(tmp_path, "hub")
    async with FakeHub(make_model(), context, is_cdn_plain=True) as hub:
        started = await start(hub, fetcher.folder, SSL_CERT_FILE=str(certificate), HF_TOKEN="hf_secret")
        status, _, err = await finish(started)
        assert (status, hub.large.requests) == (3, [])
        assert "redirects from https to http, where others could change the file: refused" in err
        assert "hf_secret" not in err


@pytest.mark.parametrize(
    ("uri", "absent"),
    [
        ("hf://org/m", {"botocore"}),
        ("s3://bucket/m", {"huggingface_hub"}),
        ("oci://host/org/m:v1", {"botocore", "huggingface_hub"}),
        ("https://host/m", {"botocore", "huggingface_hub"}),
    ],
)
def test_a_fetch_loads_no_library_of_another_source(uri: str, absent: set[str]) -> None:
    code = f"""
import sys
from millrace_fetch.cli.command import read_order, _make_parser
from millrace_fetch.fetch import open_source
open_source(read_order(_make_parser().parse_args([{uri!r}, "--to", "x"])))
print({absent} & {{*sys.modules}})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


async def test_a_fetch_whose_progress_is_lines_loads_nothing_for_a_terminal_a_port_or_a_look(
    hub: FakeHub, fetcher: Fetcher
) -> None:
    unused = {"rich", "aiohttp.web", "millrace_fetch.cli.remote_model", "millrace_fit.facts"}
    code = f"""
import sys
from millrace_fetch.cli.command import main
assert main(["hf://org/m", "--to", {str(fetcher.folder)!r}]) == 0
print({unused} & {{*sys.modules}})
"""
    started = await execute(hub, fetcher.folder, prefix=(sys.executable, "-c", code))
    status, out, err = await finish(started)
    assert (status, out.splitlines()[-1]) == (0, "set()"), err


async def test_a_fixed_revision_that_is_there_is_found_without_its_source_and_without_libraries(
    hub: FakeHub, fetcher: Fetcher
) -> None:
    status, _, err = await finish(await start(hub, fetcher.folder, "--revision", hub.commit))
    assert status == 0, err
    flags = ["hf://org/m", "--to", str(fetcher.folder), "--revision"]
    code = f"""
import sys
from millrace_fetch.cli.command import main
assert main({[*flags, hub.commit]}) == 0
print({{"aiohttp", "rich", "huggingface_hub"}} & {{*sys.modules}})
"""
    environment = {**os.environ, "HF_ENDPOINT": "http://hub.invalid"}
    done = subprocess.run(  # noqa: ASYNC221  the Hub has nothing to do meanwhile
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert " already: " in done.stdout
    assert done.stdout.endswith("set()\n")
    (fetcher.folder / "config.json").unlink()
    status, _, err = await finish(await start(hub, fetcher.folder, "--revision", hub.commit))
    assert status == 0, err
    fetcher.check(hub.files.contents)


def test_a_library_that_is_absent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "millrace_fetch.sources.s3", raising=False)
    monkeypatch.setitem(sys.modules, "millrace_fetch.sources.aws", None)
    with pytest.raises(UsageError, match=r"is not installed; write: pip install 'millrace\[fetch\]'"):
        open_source(Order(parse_uri("s3://bucket/m"), Path("x")))
