"""The HTTP edge against a small server of our own: what is sent, and what each answer becomes."""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from millrace_operator.controller.leader_election import Election
from millrace_operator.kube.connection import ApiServer
from millrace_operator.kube.credentials import load_access
from millrace_operator.kube.errors import (
    AbsentError,
    BadStartError,
    ClusterError,
    ConflictError,
    ExpiredError,
    NotLeaderError,
    RefusedError,
    TransientError,
)
from millrace_operator.kube.kinds import (
    DEPLOYMENT,
    EVENT,
    INFERENCE_SERVICE,
    KINDS,
    LEASE,
    POD,
    SERVICE,
    Kind,
    Listing,
    Scope,
)
from millrace_operator.kube.lease import LeaseView
from testing.addresses import needs_ipv6

OBJ = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": "shop", "name": "chat-1"}}


class Recorder:
    """Answers with what is queued, and keeps what was asked."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        self.answers: list[web.Response] = []

    async def handle(self, request: web.Request) -> web.Response:
        text = await request.text()
        self.requests.append(
            (request.method, request.path, dict(request.query), json.loads(text) if text else None)
        )
        self.headers = dict(request.headers)
        return self.answers.pop(0) if self.answers else web.json_response(make_answer(request.path))


def make_answer(path: str) -> dict[str, Any]:
    """Return what the API server says after a write, as far as anybody reads it."""
    kind = next(kind for kind in KINDS if kind.plural in path.split("/"))
    return {"kind": kind.kind, "metadata": {"name": "chat-1", "uid": "uid-1", "resourceVersion": "7"}}


PAGE = {"resourceVersion": "70"}
"""What the metadata of each page has."""


class FakeAccess:
    def __init__(self, server: str) -> None:
        self.server = server

    @property
    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()

    async def headers(self) -> dict[str, str]:
        return {"Authorization": "Bearer token"}


@pytest.fixture
async def recorder() -> Recorder:
    return Recorder()


@asynccontextmanager
async def connect(
    recorder: Recorder, *, host: str = "127.0.0.1", seconds_to_write: float = 10.0
) -> AsyncIterator[ApiServer]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", recorder.handle)
    server = TestServer(app, host=host)
    await server.start_server()
    access = FakeAccess(str(server.make_url("")).rstrip("/"))
    async with server, ApiServer(access, seconds_to_write=lambda: seconds_to_write) as api:  # type: ignore[arg-type]
        yield api


@pytest.fixture
async def api(recorder: Recorder) -> AsyncIterator[ApiServer]:
    async with connect(recorder) as api:
        yield api


@needs_ipv6
async def test_an_api_server_may_have_an_ipv6_address(recorder: Recorder) -> None:
    async with connect(recorder, host="::1") as api:
        await api.apply_new(OBJ)
    assert recorder.headers["Host"].startswith("[::1]:")


async def test_creating_is_an_apply_that_no_live_object_accepts(api: ApiServer, recorder: Recorder) -> None:
    await api.apply_new(OBJ)
    method, path, query, body = recorder.requests[0]
    assert (method, path) == ("PATCH", "/apis/apps/v1/namespaces/shop/deployments/chat-1")
    assert query == {"fieldManager": "millrace-operator", "force": "true", "timeout": "10000ms"}
    assert body["metadata"]["resourceVersion"] == "1"
    assert recorder.headers["Content-Type"] == "application/apply-patch+yaml"
    assert recorder.headers["Authorization"] == "Bearer token"


async def test_a_page_is_asked_for_by_any_token(api: ApiServer, recorder: Recorder) -> None:
    token = "a+/=&b c"
    recorder.answers = [
        web.json_response({"items": [], "metadata": {**PAGE, "continue": token}}),
        web.json_response({"items": [], "metadata": PAGE}),
    ]
    await api.fetch_all(Scope(SERVICE), "a/b in (c,d)")
    assert recorder.requests[1][2] == {"limit": "500", "labelSelector": "a/b in (c,d)", "continue": token}


@pytest.mark.parametrize(
    "page",
    [
        {"status": "maintenance"},
        {"items": [], "metadata": None},
        {"items": [{}], "metadata": PAGE},
        {"items": [None], "metadata": PAGE},
        {"items": {"one": 1}, "metadata": PAGE},
        {"items": {}, "metadata": PAGE},
        {"items": [], "metadata": {"resourceVersion": "new"}},
        {"items": [], "metadata": {}},
        {"kind": "Status", "metadata": {}, "status": "Failure", "code": 503},
        {"kind": "Service", "metadata": {**PAGE, "name": "x", "uid": "u"}},
    ],
)
async def test_a_list_that_nobody_can_read_is_worth_another_try(
    api: ApiServer, recorder: Recorder, page: dict[str, Any]
) -> None:
    """It would end the operator: whoever lists expects no other errors."""
    recorder.answers = [web.json_response(page)]
    with pytest.raises(TransientError, match="in the answer"):
        await api.fetch_all(Scope(SERVICE))


async def test_an_empty_list_may_be_written_as_none(api: ApiServer, recorder: Recorder) -> None:
    recorder.answers = [web.json_response({"items": None, "metadata": {"resourceVersion": "7"}})]
    assert await api.fetch_all(Scope(SERVICE)) == Listing([], 7)


STORED = {"name": "chat-1", "uid": "uid-1", "resourceVersion": "7"}
FOREIGN: list[dict[str, Any]] = [
    {"status": "maintenance"},
    {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 503},
    {"metadata": {}, "spec": None},
    {"metadata": STORED},
    {"kind": "Secret", "metadata": STORED},
    *({"metadata": {**STORED, field: value}} for field in STORED for value in (None, 7)),
    {"metadata": {**STORED, "resourceVersion": "new"}},
]
"""What is no object, in an answer with 200. Where the kind is left out, it is the one that was asked for."""


@pytest.mark.parametrize("answer", FOREIGN, ids=str)
async def test_an_answer_that_is_another_thing_is_worth_another_try(
    api: ApiServer, recorder: Recorder, answer: dict[str, Any]
) -> None:
    """It would end the operator, or be believed: whoever renews the Lease would lead without it."""

    async def ask(kind: Kind, request: Awaitable[object]) -> None:
        head = {} if answer in FOREIGN[:4] else {"kind": kind.kind}
        recorder.answers = [web.json_response(head | answer)]
        with pytest.raises(TransientError, match=f"no {kind.kind} in the answer"):
            await request

    lease = {"kind": "Lease", "metadata": {"namespace": "m", "name": "l"}}
    event = {"metadata": {"namespace": "shop", "generateName": "x."}}
    await ask(LEASE, api.fetch(LEASE, "m", "l"))
    await ask(LEASE, api.create_lease(lease))
    await ask(LEASE, api.replace_lease(lease))
    await ask(DEPLOYMENT, api.apply_new(OBJ))
    await ask(DEPLOYMENT, api.apply_owned(OBJ, "uid-1"))
    await ask(DEPLOYMENT, api.apply_status({**OBJ, "status": {}}))
    await ask(POD, api.annotate(POD, "shop", "p", "u", {}))
    await ask(EVENT, api.create_event(event))


async def test_a_candidate_whose_lease_nobody_can_read_goes_on(api: ApiServer, recorder: Recorder) -> None:
    election = Election(api, LeaseView("me", "m", "l"))
    for answer in FOREIGN[:4]:
        recorder.answers = [web.json_response(answer)]
        with pytest.raises(TransientError):
            await election.campaign()
    assert not election.is_leader()


@pytest.mark.parametrize("host", ["http://[::1", "https://api:99999999", "https://api:abc"])
async def test_an_address_that_cannot_be_read_ends_the_start(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    config = {"clusters": [{"name": "c", "cluster": {"server": host}}], "contexts": [context]}
    config |= {"users": [{"name": "u", "user": {"token": "t"}}], "current-context": "c"}
    (tmp_path / "config").write_text(json.dumps(config))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    with pytest.raises(BadStartError, match="is no address of an API server"):
        await load_access()


@pytest.mark.usefixtures("dead_proxies")
async def test_no_proxy_is_asked_for_the_api_server(api: ApiServer, recorder: Recorder) -> None:
    await api.apply_new(OBJ)
    assert len(recorder.requests) == 1


async def test_an_owned_object_is_applied_by_uid_and_status_by_version(
    api: ApiServer, recorder: Recorder
) -> None:
    await api.apply_owned(OBJ, "uid-1", "6")
    await api.apply_status({**OBJ, "metadata": {**OBJ["metadata"], "resourceVersion": "7"}, "status": {}})
    seen = recorder.requests[0][3]["metadata"]
    assert (seen["uid"], seen["resourceVersion"]) == ("uid-1", "6")
    assert recorder.requests[1][1].endswith("/status")
    assert recorder.requests[1][3]["metadata"]["resourceVersion"] == "7"


async def test_deletes_are_of_one_uid_and_what_is_gone_is_fine(api: ApiServer, recorder: Recorder) -> None:
    recorder.answers = [web.json_response({"message": "gone"}, status=404)]
    await api.delete(DEPLOYMENT, "shop", "chat-1", "uid-1")
    assert recorder.requests[0][3]["preconditions"] == {"uid": "uid-1"}


async def test_lists_are_read_in_chunks_and_carry_their_kind(api: ApiServer, recorder: Recorder) -> None:
    recorder.answers = [
        web.json_response({"metadata": {**PAGE, "continue": "next"}, "items": [{"metadata": {"name": "a"}}]}),
        web.json_response({"metadata": {"resourceVersion": "70"}, "items": [{"metadata": {"name": "b"}}]}),
    ]
    found = await api.fetch_all(Scope(POD), "millrace.dev/service")
    assert [(obj["kind"], obj["metadata"]["name"]) for obj in found.objects] == [("Pod", "a"), ("Pod", "b")]
    assert found.version == 70
    assert recorder.requests[1][2]["continue"] == "next"
    assert recorder.requests[0][2]["labelSelector"] == "millrace.dev/service"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        (["metadata.uid"], ConflictError),
        (["metadata.uid", "spec.selector"], RefusedError),
        ([], RefusedError),
    ],
)
async def test_a_refusal_of_the_uid_alone_is_a_conflict(
    api: ApiServer, recorder: Recorder, fields: list[str], error: type[ClusterError]
) -> None:
    """The API server says so of an apply that names another object's uid."""
    body = {"message": "invalid", "details": {"causes": [{"field": field} for field in fields]}}
    recorder.answers = [web.json_response(body, status=422)]
    with pytest.raises(error):
        await api.apply_owned(OBJ, "uid-1")


async def test_who_is_asked_to_wait_holds_all_writes_but_the_lease(
    api: ApiServer, recorder: Recorder
) -> None:
    recorder.answers = [web.json_response({}, status=429, headers={"Retry-After": "1"})]
    with pytest.raises(TransientError):
        await api.apply_owned(OBJ, "uid-1")
    began = time.monotonic()
    await api.create_lease({"metadata": {"namespace": "millrace", "name": "lease"}})
    assert time.monotonic() - began < 0.9
    await api.apply_owned({**OBJ, "metadata": {**OBJ["metadata"], "name": "another"}}, "uid-2")
    assert time.monotonic() - began > 0.9


@pytest.mark.parametrize("num_expired", [1, 2, 3])
async def test_a_list_that_expires_on_the_way_is_begun_anew(
    api: ApiServer, recorder: Recorder, num_expired: int
) -> None:
    item = {"metadata": {"name": "a"}}
    page = {"items": [item], "metadata": {"continue": "next", "resourceVersion": "5"}}
    for _ in range(num_expired):
        recorder.answers += [web.json_response(page), web.json_response({}, status=410)]
    if num_expired == 3:
        with pytest.raises(ExpiredError):
            await api.fetch_all(Scope(SERVICE))
        return
    recorder.answers += [web.json_response(page), web.json_response({"items": [item], "metadata": PAGE})]
    assert len((await api.fetch_all(Scope(SERVICE))).objects) == 2


async def test_what_is_absent_is_none(api: ApiServer, recorder: Recorder) -> None:
    recorder.answers = [web.json_response({}, status=404)]
    assert await api.fetch(SERVICE, "shop", "chat") is None


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (409, ConflictError), (422, RefusedError), (403, RefusedError), (400, RefusedError),
        (404, AbsentError), (405, RefusedError), (413, RefusedError), (415, RefusedError),
        (429, TransientError), (500, TransientError), (504, TransientError),
    ],
)  # fmt: skip
async def test_each_status_becomes_its_error_with_the_servers_words(
    api: ApiServer, recorder: Recorder, status: int, error: type[ClusterError]
) -> None:
    recorder.answers = [web.json_response({"message": "the reason"}, status=status)]
    with pytest.raises(error, match="the reason"):
        await api.apply_new(OBJ)


async def test_a_servers_wish_for_a_pause_is_passed_on(api: ApiServer, recorder: Recorder) -> None:
    recorder.answers = [web.Response(text="slow down", status=429, headers={"Retry-After": "7"})]
    with pytest.raises(TransientError) as caught:
        await api.apply_new(OBJ)
    assert caught.value.retry_after_seconds == 7


@pytest.mark.parametrize("body", [b"<html>a proxy</html>", b"", b"null", b"\xff"])
async def test_an_answer_that_is_no_object_is_worth_another_try(
    api: ApiServer, recorder: Recorder, body: bytes
) -> None:
    recorder.answers = [web.Response(body=body, content_type="application/json")]
    with pytest.raises(TransientError, match=r"GET /api/v1/namespaces/shop/services/chat: no JSON object"):
        await api.fetch(SERVICE, "shop", "chat")


async def test_no_write_leaves_without_the_lease(recorder: Recorder) -> None:
    async with connect(recorder, seconds_to_write=0.0) as api:
        with pytest.raises(NotLeaderError):
            await api.apply_new(OBJ)
        with pytest.raises(NotLeaderError):
            await api.annotate(POD, "shop", "p", "u", {})
        assert recorder.requests == []
        await api.replace_lease({"kind": "Lease", "metadata": {"namespace": "m", "name": "l"}})
    assert recorder.requests[0][1] == LEASE.path("m", "l")


async def test_a_write_ends_before_another_replica_may_lead(recorder: Recorder) -> None:
    async def stall(_: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    recorder.handle = stall  # type: ignore[method-assign]
    async with connect(recorder, seconds_to_write=0.05) as api:
        with pytest.raises(TransientError, match="TimeoutError"):
            await asyncio.wait_for(api.apply_new(OBJ), 10)


async def test_a_request_that_is_cancelled_as_its_time_runs_out_is_cancelled(recorder: Recorder) -> None:
    async def stall(_: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    recorder.handle = stall  # type: ignore[method-assign]
    async with connect(recorder, seconds_to_write=0.5) as api:
        writing = asyncio.create_task(api.apply_new(OBJ))
        asyncio.get_running_loop().call_later(0.6, writing.cancel)
        await asyncio.sleep(0.2)
        time.sleep(0.6)  # noqa: ASYNC251  the process stands still, and both moments pass
        await asyncio.wait([writing])
        assert writing.cancelled()


async def test_a_server_that_is_away_is_worth_another_try() -> None:
    async with ApiServer(FakeAccess("http://127.0.0.1:9"), seconds_to_write=lambda: 10.0) as api:  # type: ignore[arg-type]
        with pytest.raises(TransientError):
            await api.fetch(INFERENCE_SERVICE, "a", "b")


async def test_an_annotation_is_a_merge_patch_of_one_pod(api: ApiServer, recorder: Recorder) -> None:
    await api.annotate(POD, "shop", "p", "uid-p", {"cost": "-1", "old": None})
    await api.annotate(POD, "shop", "p", "uid-p", {"cost": "-1"}, version="7")
    first, second = (request[3]["metadata"] for request in recorder.requests)
    assert first == {"uid": "uid-p", "annotations": {"cost": "-1", "old": None}}
    assert second == {"uid": "uid-p", "resourceVersion": "7", "annotations": {"cost": "-1"}}


async def test_events_are_created_in_their_namespace(api: ApiServer, recorder: Recorder) -> None:
    await api.create_event({"metadata": {"namespace": "shop", "generateName": "x."}})
    assert recorder.requests[0][:2] == ("POST", "/api/v1/namespaces/shop/events")
