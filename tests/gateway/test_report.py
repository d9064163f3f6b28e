"""What a gateway tells the leading operator, and that it tells nobody else."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from hashlib import sha256

import pytest

from millrace_gateway.report.report import Activity, Report
from millrace_gateway.report.stream import LeaderCheck
from millrace_gateway.route.balance import Balancer
from millrace_gateway.route.catalogue import Catalogue
from millrace_gateway.route.objects import Replica, ServiceChanges, ServiceKey
from millrace_runtime.contract import ANNOTATION_LEAVING
from testing.gateway_bench import counted
from tests.gateway.conftest import Bench, make_pod, make_service

KEY = ServiceKey("shop", "chat")


def make_leaver(uid: str) -> dict[str, object]:
    pod = make_pod("shop", "chat", uid)
    pod["metadata"]["annotations"] = {ANNOTATION_LEAVING: "2026-01-01T00:00:00Z"}
    return pod


def make_catalogue() -> Catalogue:
    catalogue = Catalogue(lambda: 0.0)
    catalogue.replace_services([make_service("shop", "chat")])
    catalogue.replace_replicas([make_pod("shop", "chat", "a"), make_pod("shop", "chat", "b")])
    return catalogue


def find_replica(catalogue: Catalogue) -> Replica:
    route = catalogue.find(KEY)
    assert route
    return catalogue.ready_replicas(route)[0]


def test_each_line_says_what_has_changed() -> None:
    catalogue, balancer = make_catalogue(), Balancer(2.0)
    report = Report(catalogue, balancer, Activity(lambda: 0.0))
    replica = find_replica(catalogue)
    with counted(balancer, replica):
        first = {"known": 0, "ready": {"a": 1, "b": 1}, "in_flight": {"a": 1}, "leaving": []}
        assert json.loads(report.next_line(0.0)) == first
        catalogue.apply_replica(make_leaver("b"))
        assert json.loads(report.next_line(0.0)) == {"leaving": ["b"]}
    assert report.next_line(0.0) == b'{"in_flight": {"a": 0}}\n'
    assert json.loads(report.next_line(0.0)) == {}
    another = Report(catalogue, balancer, Activity(lambda: -3.0))
    assert json.loads(another.next_line(4.0)) == {"known": 7.0, "ready": {"a": 1, "b": 1}, "leaving": ["b"]}
    catalogue.delete_replica(make_pod("shop", "chat", "a"))
    assert json.loads(another.next_line(5.0)) == {"ready": {"a": 0}}
    empty = Report(Catalogue(lambda: 0.0), balancer, Activity(lambda: 0.0))
    assert json.loads(empty.next_line(0.0)) == {"known": 0, "ready": {}, "leaving": []}


class Lister(Catalogue):
    """It counts how often all replicas are listed."""

    num_lists = 0

    def list_ready(self) -> list[str]:
        self.num_lists += 1
        return super().list_ready()


def test_replicas_are_listed_only_where_they_have_changed() -> None:
    catalogue, balancer = Lister(lambda: 0.0), Balancer(2.0)
    catalogue.replace_services([make_service("shop", "chat")])
    catalogue.replace_replicas([make_pod("shop", "chat", "a")])
    report = Report(catalogue, balancer, Activity(lambda: 0.0))
    for number in range(5):
        with counted(balancer, find_replica(catalogue)):
            assert json.loads(report.next_line(0.0))["in_flight"] == {"a": 1}
        assert json.loads(report.next_line(0.0)) == {"in_flight": {"a": 0}}
        assert catalogue.num_lists == 1, number
    for change in (
        lambda: catalogue.apply_replica(make_pod("shop", "chat", "b")),
        lambda: catalogue.delete_replica(make_pod("shop", "chat", "b")),
        lambda: catalogue.replace_replicas([make_pod("shop", "chat", "c")]),
    ):
        change()
        assert "ready" in json.loads(report.next_line(0.0))


def test_nothing_is_counted_where_no_request_has_come_or_gone() -> None:
    """A gateway without traffic has thousands of ends."""
    now = itertools.count()
    activity = Activity(lambda: float(next(now)))
    report = Report(make_catalogue(), Balancer(2.0), activity)
    for number in (1, 2):
        report.next_line(0.0)
        with counted(activity, KEY):
            line = json.loads(report.next_line(0.0))
            assert (line["open"], line["arrived"]) == ({"shop/chat": 1}, {"shop/chat": number})
    line = json.loads(report.next_line(2.0))
    assert line == {"open": {"shop/chat": 0}, "ended": {"shop/chat": 0.0}}
    activity.list_ends = None  # type: ignore[method-assign,assignment]
    assert json.loads(report.next_line(0.0)) == {}


def pick_all(catalogue: Catalogue, tried: Collection[str] = ()) -> set[str]:
    """Who gets the next requests."""
    route = catalogue.find(KEY)
    assert route
    catalogue.check_integrity()
    balancer, ready = Balancer(2.0), catalogue.ready_replicas(route)
    return {found.uid for now in range(4) if (found := balancer.pick(ready, tried, 100.0 + now))}


def test_a_leaving_replica_gets_nothing_new_while_there_is_another() -> None:
    catalogue = make_catalogue()
    catalogue.apply_replica(make_leaver("b"))
    assert pick_all(catalogue) == {"a"}
    assert pick_all(catalogue, {"a"}) == {"b"}  # where the other one refuses, it is asked
    catalogue.apply_replica(make_leaver("a"))  # the last ones serve until they are gone
    assert pick_all(catalogue) == {"a", "b"}
    catalogue.apply_replica(make_pod("shop", "chat", "b"))  # it is needed again
    assert pick_all(catalogue) == {"b"}
    assert catalogue.list_leaving() == {"a"}


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer x"}, {"Authorization": "Basic \xe9"}])
async def test_strangers_are_told_nothing(bench: Bench, headers: dict[str, str]) -> None:
    async with bench.client.get(f"{bench.metrics_url}/loads", headers=headers) as answer:
        assert answer.status == 401
        assert "leading operator" in (await answer.json())["error"]


async def test_strangers_who_leave_make_nobody_ask_the_api_server_all_the_time() -> None:
    num_asked = 0

    class Hanging:
        @asynccontextmanager
        async def request(self, *_: object) -> AsyncIterator[None]:
            nonlocal num_asked
            num_asked += 1
            await asyncio.sleep(60)
            yield

    check = LeaderCheck("millrace-system")
    check.connection = Hanging()  # type: ignore[assignment]
    check._expected = sha256(b"the leader's").hexdigest()
    for _ in range(20):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await check.is_leader("a stranger's")
    assert num_asked == 1
    assert await check.is_leader("the leader's")  # also while the API server does not answer


def test_what_waits_for_its_turn_is_reported() -> None:
    waiting = {KEY: 5}
    report = Report(make_catalogue(), Balancer(2.0), Activity(lambda: 0.0), lambda: dict(waiting))
    assert json.loads(report.next_line(0.0))["waiting"] == {"shop/chat": 5}
    assert json.loads(report.next_line(0.0)) == {}
    waiting.clear()
    assert json.loads(report.next_line(0.0)) == {"waiting": {"shop/chat": 0}}


def test_services_with_requests_and_their_last_ends_are_told() -> None:
    now = 100.0
    activity = Activity(lambda: now)
    report = Report(make_catalogue(), Balancer(2.0), activity)
    now = 110.0
    with counted(activity, KEY), counted(activity, KEY):
        first = json.loads(report.next_line(now))
        assert (first["known"], first["open"]) == (10.0, {"shop/chat": 2})
        assert json.loads(report.next_line(now)) == {}
        now = 120.0
    assert json.loads(report.next_line(now + 1.5)) == {"open": {"shop/chat": 0}, "ended": {"shop/chat": 1.5}}
    assert json.loads(report.next_line(now + 9.0)) == {}
    activity.forget_deleted(ServiceChanges(deleted=[KEY]))
    assert activity.list_ends() == {}
