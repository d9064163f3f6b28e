from pathlib import Path

import pytest
from aiohttp import encode_basic_auth, web

from millrace_fetch.errors import ChangedError, RefusedError, SourceError, UsageError
from testing.model_sources.servers import Fault, WebFolderServer, once
from tests.fetch.conftest import INDEX, SHARDS, Fetcher, make_model


async def test_a_folder_comes_as_its_index_names_it(fetcher: Fetcher, folder_server: WebFolderServer) -> None:
    outcome = await fetcher.fetch(folder_server.uri)
    fetcher.check(folder_server.files.contents)
    assert len(outcome.marker.revision) == 40
    assert not (await fetcher.fetch(f"{folder_server.uri}/")).has_fetched


async def test_a_model_in_one_file_needs_no_index(fetcher: Fetcher) -> None:
    contents = {"config.json": b"{}", "model.safetensors": b"w" * 5000}
    async with WebFolderServer(contents) as server:
        await fetcher.fetch(server.uri)
    fetcher.check(contents, ["config.json", "model.safetensors"])


@pytest.mark.parametrize("knob", ["has_ranges", "has_lengths", "allows_head"])
async def test_a_server_that_can_do_less_serves_too(
    fetcher: Fetcher, folder_server: WebFolderServer, knob: str
) -> None:
    setattr(folder_server.files, knob, False)
    folder_server.files.cuts[SHARDS[0]] = 1
    await fetcher.fetch(folder_server.uri)
    fetcher.check(folder_server.files.contents)


def refuse_head(status: int) -> Fault:
    return lambda request: web.Response(status=status) if request.method == "HEAD" else None


@pytest.mark.parametrize("status", [403, 405, 501])
async def test_a_server_that_answers_no_head_serves_too(
    fetcher: Fetcher, folder_server: WebFolderServer, status: int
) -> None:
    folder_server.files.faults.append(refuse_head(status))
    await fetcher.fetch(folder_server.uri)
    fetcher.check(folder_server.files.contents)
    assert fetcher.witness.said == []


@pytest.mark.parametrize("status", [501, 505])
async def test_what_a_server_can_never_do_is_not_asked_for_again(
    fetcher: Fetcher, folder_server: WebFolderServer, status: int
) -> None:
    folder_server.files.faults.append(lambda _: web.Response(status=status))
    with pytest.raises(RefusedError, match=f"answered {status}$"):
        await fetcher.fetch(folder_server.uri)
    assert fetcher.witness.said == []


async def test_no_config_says_so(fetcher: Fetcher, folder_server: WebFolderServer) -> None:
    del folder_server.files.contents["config.json"]
    with pytest.raises(SourceError, match=r"there is no config\.json at http://127.*/models/m/"):
        await fetcher.fetch(folder_server.uri)


async def test_a_page_instead_of_not_found_is_no_file(
    fetcher: Fetcher, folder_server: WebFolderServer
) -> None:
    def page(request: web.Request) -> web.Response | None:
        is_there = request.path.rpartition("/")[2] in folder_server.files.contents
        return None if is_there else web.Response(text="<html>", content_type="text/html")

    folder_server.files.faults.append(page)
    await fetcher.fetch(folder_server.uri)
    fetcher.check(folder_server.files.contents)


async def test_a_file_that_changes_under_way_makes_it_look_again(
    fetcher: Fetcher, folder_server: WebFolderServer
) -> None:
    files = folder_server.files
    later = make_model(120_000)

    def change(request: web.Request) -> None:
        if request.method == "GET" and request.path.endswith(SHARDS[1]):
            files.contents[SHARDS[1]] = later[SHARDS[1]]

    files.faults.append(change)
    await fetcher.fetch(folder_server.uri)
    fetcher.check(files.contents)
    assert fetcher.witness.said == [f"{SHARDS[1]} changed during the fetch; resolving the model again"]


DATE = "Wed, 21 Oct 2015 07:28:00 GMT"
UNKNOWN: dict[str, tuple[str, dict[str, str | None]]] = {
    "weak in HEAD": ("HEAD", {"ETag": 'W/"1"'}),
    "no ETag in HEAD": ("HEAD", {"ETag": None}),
    "a date in HEAD": ("HEAD", {"ETag": None, "Last-Modified": DATE}),
    "no ETag in GET": ("GET", {"ETag": None}),
    "a date in GET": ("GET", {"ETag": None, "Last-Modified": DATE}),
}


@pytest.mark.parametrize("name", UNKNOWN)
async def test_an_absent_validator_is_unknown_and_not_another(
    fetcher: Fetcher, folder_server: WebFolderServer, name: str
) -> None:
    method, changed = UNKNOWN[name]
    files = folder_server.files
    files.etags = dict.fromkeys(files.contents, '"1"')
    files.changed[method] = changed
    await fetcher.fetch(folder_server.uri)
    fetcher.check(files.contents)
    assert fetcher.witness.said == []


async def test_a_file_that_became_shorter_makes_it_look_again(
    fetcher: Fetcher, folder_server: WebFolderServer
) -> None:
    refuse = once(lambda: web.Response(status=416))
    folder_server.files.cuts[SHARDS[0]] = 1
    folder_server.files.faults.append(lambda request: refuse(request) if "Range" in request.headers else None)
    await fetcher.fetch(folder_server.uri)
    fetcher.check(folder_server.files.contents)
    assert any(f"{SHARDS[0]} changed" in text for text in fetcher.witness.said)


async def test_a_file_that_keeps_changing_is_an_error(
    fetcher: Fetcher, folder_server: WebFolderServer
) -> None:
    files, counter = folder_server.files, iter(range(1000))

    def change(_: web.Request) -> None:
        files.etags[SHARDS[1]] = f'"{next(counter)}"'

    files.faults.append(change)
    with pytest.raises(ChangedError, match="keeps changing: run it again"):
        await fetcher.fetch(folder_server.uri)
    assert not fetcher.is_marked()


async def test_an_index_that_names_what_is_not_there_is_refused(
    fetcher: Fetcher, folder_server: WebFolderServer
) -> None:
    del folder_server.files.contents[SHARDS[1]]
    with pytest.raises(SourceError, match=f"names {SHARDS[1]}, which is not there"):
        await fetcher.fetch(folder_server.uri)


async def test_an_index_that_leaves_the_folder_is_refused(
    fetcher: Fetcher, folder_server: WebFolderServer
) -> None:
    folder_server.files.contents[INDEX] = b'{"weight_map": {"a": "../../secret.safetensors"}}'
    with pytest.raises(Exception, match="leaves its folder: refused"):
        await fetcher.fetch(folder_server.uri)


async def test_a_signed_folder_keeps_its_signature_to_itself(
    fetcher: Fetcher, folder_server: WebFolderServer
) -> None:
    seen: list[str] = []

    def check(request: web.Request) -> web.Response | None:
        seen.append(request.query_string)
        return web.Response(status=500) if request.path.endswith(SHARDS[0]) and len(seen) > 20 else None

    folder_server.files.faults.append(check)
    with pytest.raises(Exception, match=r"answered 500") as caught:
        await fetcher.fetch(f"{folder_server.uri}?sig=secret")
    assert set(seen) == {"sig=secret"}
    told = [
        str(caught.value),
        *fetcher.witness.said,
        *(p.read_text(errors="replace") for p in _state(fetcher)),
    ]
    assert not [text for text in told if "secret" in text]


def _state(fetcher: Fetcher) -> list:  # type: ignore[type-arg]
    return [path for path in (fetcher.folder / ".millrace").rglob("*") if path.is_file()]


async def test_who_is_not_let_in_is_told_so(fetcher: Fetcher, folder_server: WebFolderServer) -> None:
    folder_server.files.faults.append(lambda _: web.Response(status=401))
    with pytest.raises(SourceError, match="answered 401: the server demands credentials"):
        await fetcher.fetch(folder_server.uri)


class Gate:
    """A fault of a server that lets only some in, and keeps what each showed."""

    def __init__(self, wanted: str | None) -> None:
        self._wanted = wanted
        self.shown: list[str | None] = []

    def __call__(self, request: web.Request) -> web.Response | None:
        self.shown.append(request.headers.get("Authorization"))
        return None if self._wanted in (None, self.shown[-1]) else web.Response(status=401)


async def test_a_token_of_the_environment_is_shown_to_the_server(
    fetcher: Fetcher, folder_server: WebFolderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder_server.files.faults.append(Gate("Bearer letmein"))
    with pytest.raises(SourceError, match="put a token that may read it into MILLRACE_HTTP_TOKEN"):
        await fetcher.fetch(folder_server.uri)
    monkeypatch.setenv("MILLRACE_HTTP_TOKEN", "letmein\n")
    await fetcher.fetch(folder_server.uri)
    fetcher.check(folder_server.files.contents)
    monkeypatch.setenv("MILLRACE_HTTP_TOKEN", "wrong")
    with pytest.raises(SourceError, match="answered 401: the server refuses the token") as caught:
        await fetcher.fetch(folder_server.uri)
    stored = [path.read_text(errors="replace") for path in _state(fetcher)]
    told = [str(caught.value), *fetcher.witness.said, *stored]
    assert not [text for text in told if "letmein" in text or "wrong" in text]


async def test_a_redirect_to_another_host_does_not_take_the_token_along(
    fetcher: Fetcher, folder_server: WebFolderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_HTTP_TOKEN", "letmein")
    monkeypatch.setenv("NO_PROXY", "*")
    async with WebFolderServer(folder_server.files.contents) as other:
        at_home, away = Gate("Bearer letmein"), Gate(None)
        address = f"http://localhost:{other.uri.rpartition(':')[2]}"

        def lead_away(request: web.Request) -> web.Response | None:
            target = f"{address}/{request.path.rpartition('/')[2]}"
            is_shard = request.path.endswith(SHARDS[0])
            return web.Response(status=302, headers={"Location": target}) if is_shard else None

        folder_server.files.faults += [at_home, lead_away]
        other.files.faults.append(away)
        await fetcher.fetch(folder_server.uri)
    fetcher.check(folder_server.files.contents)
    assert set(at_home.shown) == {"Bearer letmein"}
    assert away.shown
    assert set(away.shown) == {None}


async def test_a_host_in_capital_letters_is_shown_the_token_too(
    fetcher: Fetcher, folder_server: WebFolderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_HTTP_TOKEN", "letmein")
    monkeypatch.setenv("NO_PROXY", "*")
    gate = Gate("Bearer letmein")

    def lead_home(request: web.Request) -> web.Response | None:
        location = f"http://LOCALHOST:{request.url.port}{request.path}?again"
        is_to_go = request.path.endswith(SHARDS[0]) and not request.query_string
        return web.Response(status=302, headers={"Location": location}) if is_to_go else None

    folder_server.files.faults += [gate, lead_home]
    await fetcher.fetch(folder_server.uri.replace("127.0.0.1", "LocalHost"))
    fetcher.check(folder_server.files.contents)
    assert set(gate.shown) == {"Bearer letmein"}


async def test_who_is_refused_with_a_password_in_the_address_is_told_of_that(
    fetcher: Fetcher, folder_server: WebFolderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_HTTP_TOKEN", "letmein")
    folder_server.files.faults.append(Gate("Bearer letmein"))
    with pytest.raises(
        SourceError, match="the server refuses the name and password of the address"
    ) as caught:
        await fetcher.fetch(folder_server.uri.replace("://", "://me:mine@"))
    assert "leave them out to send the token in MILLRACE_HTTP_TOKEN" in str(caught.value)
    assert "mine" not in str(caught.value)


def test_a_host_that_no_request_can_name_is_told(fetcher: Fetcher) -> None:
    with pytest.raises(UsageError, match="names no host: write"):
        fetcher.open_source(fetcher.order("https://ü..example/m"))


async def test_a_password_in_the_address_counts_more_than_the_token(
    fetcher: Fetcher, folder_server: WebFolderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_HTTP_TOKEN", "letmein")
    gate = Gate(None)
    folder_server.files.faults.append(gate)
    await fetcher.fetch(folder_server.uri.replace("://", "://me:mine@"))
    assert set(gate.shown) == {encode_basic_auth("me", "mine")}


async def test_a_netrc_has_name_and_password_where_there_is_no_token(
    fetcher: Fetcher, folder_server: WebFolderServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password mine\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    named, with_token = Gate(encode_basic_auth("me", "mine")), Gate("Bearer letmein")
    folder_server.files.faults.append(named)
    await fetcher.fetch(folder_server.uri)
    monkeypatch.setenv("MILLRACE_HTTP_TOKEN", "letmein")
    folder_server.files.faults[:] = [with_token]
    assert not (await fetcher.fetch(folder_server.uri)).has_fetched
    assert set(with_token.shown) == {"Bearer letmein"}


@pytest.mark.parametrize("token", ["two\nlines", "schlüssel"])
def test_a_token_that_no_request_can_carry_is_named(
    token: str, fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_HTTP_TOKEN", token)
    with pytest.raises(SourceError, match="MILLRACE_HTTP_TOKEN holds no token") as caught:
        fetcher.open_source(fetcher.order("https://models.example/m"))
    assert token not in str(caught.value)


async def test_redirects_without_end_are_refused(fetcher: Fetcher, folder_server: WebFolderServer) -> None:
    folder_server.files.faults.append(lambda r: web.Response(status=302, headers={"Location": r.path}))
    with pytest.raises(RefusedError, match="redirects again and again"):
        await fetcher.fetch(folder_server.uri)
