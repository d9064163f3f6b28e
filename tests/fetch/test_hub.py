import asyncio
import re

import pytest
from aiohttp import web

from millrace_fetch.cli.remote_model import fetch_head
from millrace_fetch.errors import CorruptError, SourceError, UnavailableError, UnsafeNameError, UsageError
from testing.model_sources.processes import until
from testing.model_sources.servers import FakeHub, once
from tests.fetch.conftest import NEEDED, SHARDS, Fetcher

URI = "hf://org/m"


async def test_the_files_that_a_replica_reads_come_and_no_others(fetcher: Fetcher, hub: FakeHub) -> None:
    outcome = await fetcher.fetch(URI)
    assert outcome.has_fetched
    assert outcome.marker.revision == hub.commit
    fetcher.check(hub.files.contents)
    assert fetcher.witness.done == fetcher.witness.total == outcome.marker.num_bytes


async def test_a_second_run_fetches_nothing(fetcher: Fetcher, hub: FakeHub) -> None:
    await fetcher.fetch(URI)
    before = len(hub.files.requests), len(hub.large.requests)
    outcome = await fetcher.fetch(URI)
    assert not outcome.has_fetched
    assert (len(hub.files.requests), len(hub.large.requests)) == before


async def test_of_a_commit_that_is_there_the_hub_is_not_even_asked(fetcher: Fetcher, hub: FakeHub) -> None:
    await fetcher.fetch(f"{URI}@{hub.commit}")
    asked = hub.num_api_requests
    await fetcher.fetch(f"{URI}@{hub.commit}")
    assert hub.num_api_requests == asked


async def test_the_token_goes_to_the_hub_and_not_to_the_host_of_the_bytes(
    fetcher: Fetcher, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.token = "hf_secret"
    await fetcher.fetch(URI)
    assert set(hub.files.authorizations) == {"Bearer hf_secret"}
    assert set(hub.large.authorizations) == {None}


async def test_a_gated_repository_says_how_to_get_access(fetcher: Fetcher, hub: FakeHub) -> None:
    hub.token = "hf_secret"
    with pytest.raises(
        SourceError, match=r"org/m is gated: ask for access at .*/org/m, then put .* HF_TOKEN"
    ):
        await fetcher.fetch(URI)
    assert fetcher.names() == []


async def test_a_hub_in_capital_letters_is_shown_the_token_too(
    fetcher: Fetcher, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("NO_PROXY", "*")
    hub.token = "hf_secret"
    fetcher.endpoint = hub.endpoint.replace("127.0.0.1", "LocalHost")
    await fetcher.fetch(URI)
    fetcher.check(hub.files.contents)


async def test_a_token_without_access_says_the_same(
    fetcher: Fetcher, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.large.faults.append(lambda _: web.Response(status=403))
    with pytest.raises(SourceError, match="org/m is gated") as caught:
        await fetcher.fetch(URI)
    assert "hf_secret" not in str(caught.value)


async def test_a_token_that_is_none_is_told(
    fetcher: Fetcher, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.api_faults.append(lambda _: web.Response(status=401))
    with pytest.raises(SourceError, match="HF_TOKEN") as caught:
        await fetcher.fetch(URI)
    assert "hf_secret" not in str(caught.value)


async def test_a_small_file_is_checked_by_its_git_hash_where_it_is_only_looked_at(
    fetcher: Fetcher, hub: FakeHub
) -> None:
    hub.announced["config.json"] = b'{"model_type": "other"}'
    with pytest.raises(CorruptError, match=r"config\.json has another checksum than announced"):
        await fetch_head(fetcher.hub_source(), fetcher.witness.say)


async def test_what_is_not_there_is_named(fetcher: Fetcher, hub: FakeHub) -> None:
    assert hub.revisions == {"main", hub.commit}
    with pytest.raises(SourceError, match="org/m has no revision 'v9'"):
        await fetcher.fetch(f"{URI}@v9")
    with pytest.raises(SourceError, match="shows no model org/other"):
        await fetcher.fetch("hf://org/other")


async def test_too_many_requests_are_waited_for(fetcher: Fetcher, hub: FakeHub) -> None:
    def busy() -> web.Response:
        return web.Response(status=429, headers={"Retry-After": "0"})

    hub.api_faults.append(once(busy))
    hub.files.faults.append(once(busy, 3))
    hub.large.faults.append(once(lambda: web.Response(status=503), 3))
    await fetcher.fetch(URI)
    fetcher.check(hub.files.contents)
    assert any("answered 429" in text for text in fetcher.witness.said)


@pytest.mark.parametrize("part", ["api", "large"])
async def test_who_asks_for_an_hour_is_left_alone_for_as_long(
    fetcher: Fetcher, hub: FakeHub, part: str
) -> None:
    faults = hub.api_faults if part == "api" else hub.large.faults
    faults.append(lambda _: web.Response(status=429, headers={"Retry-After": "3600"}))
    num_waiting = 1 if part == "api" else len(SHARDS) + 1  # the tokenizer is a large file too
    fetching = asyncio.create_task(fetcher.fetch(URI))
    async with asyncio.timeout(10):
        await until(lambda: len(fetcher.witness.said) == num_waiting or fetching.done())
    await asyncio.sleep(0.1)
    assert len(fetcher.witness.said) == num_waiting
    assert all(text.endswith("429, and asks to retry after 1h00m; waiting") for text in fetcher.witness.said)
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching


@pytest.mark.parametrize("part", ["api", "large"])
async def test_who_asks_for_more_than_an_hour_is_left_alone_and_the_user_told(
    fetcher: Fetcher, hub: FakeHub, part: str
) -> None:
    faults = hub.api_faults if part == "api" else hub.large.faults
    faults.append(lambda _: web.Response(status=429, headers={"Retry-After": "3601"}))
    with pytest.raises(UnavailableError, match="429, and asks to retry after 1h00m; a later run"):
        await fetcher.fetch(URI)
    assert fetcher.witness.said == []


async def test_a_body_that_is_cut_goes_on_where_it_was(fetcher: Fetcher, hub: FakeHub) -> None:
    hub.large.cuts[SHARDS[0]] = 3
    await fetcher.fetch(URI)
    fetcher.check(hub.files.contents)
    assert hub.large.sent[SHARDS[0]] == len(hub.files.contents[SHARDS[0]])
    assert not any("secret-signature" in text for text in fetcher.witness.said)


async def test_bytes_that_change_between_two_ranges_are_fetched_anew(fetcher: Fetcher, hub: FakeHub) -> None:
    """The first half is of other bytes, as of a host behind the Hub that was late."""
    name, right = SHARDS[0], dict(hub.files.contents)
    hub.large.contents = right | {name: bytes(reversed(right[name]))}
    hub.large.cuts[name] = 1

    def catch_up(sent: str) -> None:
        if sent == name:
            hub.large.contents = right

    hub.large.on_sent = catch_up
    await fetcher.fetch(URI)
    fetcher.check(right)
    size, half = len(right[name]), len(right[name]) // 2
    assert hub.large.ranges == [(name, half, size)]
    assert hub.large.sent[name] == 2 * size
    assert [text for text in fetcher.witness.said if name in text and "fetching it again" in text]


async def test_a_source_that_stays_broken_is_given_up(fetcher: Fetcher, hub: FakeHub) -> None:
    hub.large.faults.append(lambda _: web.Response(status=500))
    with pytest.raises(Exception, match="answered 500") as caught:
        await fetcher.fetch(URI)
    assert "secret-signature" not in str(caught.value)
    assert not fetcher.is_marked()


@pytest.mark.parametrize("name", [SHARDS[0], "config.json"], ids=["sha256", "git-sha1"])
async def test_bytes_that_are_not_those_announced_get_no_name(
    fetcher: Fetcher, hub: FakeHub, name: str
) -> None:
    content = hub.files.contents[name]
    hub.announced[name] = content[:-1] + b"!"
    with pytest.raises(CorruptError, match=f"{name} has .* twice"):
        await fetcher.fetch(URI)
    assert name not in fetcher.names()
    assert not fetcher.is_marked()


@pytest.mark.parametrize("has_lengths", [True, False])
async def test_a_body_that_is_too_long_is_refused(
    fetcher: Fetcher, hub: FakeHub, *, has_lengths: bool
) -> None:
    hub.large.has_lengths = has_lengths
    hub.large.excess = b"more"
    with pytest.raises(CorruptError, match=r"more bytes than announced|were announced"):
        await fetcher.fetch(URI)
    assert not fetcher.is_marked()


async def test_a_name_that_leaves_the_folder_is_refused(fetcher: Fetcher, hub: FakeHub) -> None:
    hub.files.contents["additional_chat_templates/../../../x.jinja"] = b"escaped"
    with pytest.raises(UnsafeNameError, match=re.escape("leaves its folder")):
        await fetcher.fetch(URI)
    assert not list(fetcher.folder.parent.rglob("x.jinja"))


@pytest.mark.parametrize(
    ("etag", "changed"),
    [("", {}), ('W/"weak"', {}), ("", {"GET": {"ETag": None}})],
    ids=["its own", "weak", "none"],
)
async def test_a_hub_that_lists_names_alone_serves_too(
    fetcher: Fetcher, hub: FakeHub, etag: str, changed: dict[str, dict[str, str | None]]
) -> None:
    hub.has_hashes, numbers = False, iter(range(1000))
    hub.large.changed = hub.files.changed = changed

    def answer_anew(_: web.Request) -> None:
        """HEAD and GET have different ETags, as of several hosts behind one name."""
        hub.large.etags = dict.fromkeys(hub.large.contents, etag or f'"{next(numbers)}"')

    hub.large.faults.append(answer_anew)
    hub.large.cuts[SHARDS[0]] = 1
    await fetcher.fetch(URI)
    fetcher.check(hub.files.contents)
    assert not [text for text in fetcher.witness.said if "changed during" in text]


async def test_a_new_revision_fetches_what_changed_and_drops_what_is_gone(
    fetcher: Fetcher, hub: FakeHub
) -> None:
    await fetcher.fetch(URI)
    hub.large.sent.clear()
    hub.commit = "2" * 40
    hub.files.contents[SHARDS[1]] = b"new" * 1000
    del hub.files.contents["chat_template.jinja"]
    await fetcher.fetch(URI)
    fetcher.check(hub.files.contents, [name for name in NEEDED if name != "chat_template.jinja"])
    assert hub.large.sent[SHARDS[0]] == 0


def test_an_endpoint_without_a_scheme_is_named(fetcher: Fetcher) -> None:
    fetcher.endpoint = "hub.lan"
    with pytest.raises(UsageError, match=r"^HF_ENDPOINT: 'hub\.lan' names no host: write https://host$"):
        fetcher.hub_source()
