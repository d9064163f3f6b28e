"""Requests that wait for their turns, and what lets many of them go at once."""

import asyncio
from contextlib import suppress
from itertools import pairwise

import pytest

from millrace_gateway.access.fairness.replica_room import FIRST_REQUESTS, PresentReplica
from millrace_gateway.access.fairness.window import ABSENT_SECONDS, Present
from millrace_gateway.access.identity import Tenant
from millrace_gateway.errors import DrainingError
from millrace_gateway.front.holding import WOKEN_AT_ONCE, Waker
from millrace_gateway.front.turnstiles import Turnstiles
from millrace_gateway.route.objects import ServiceChanges, ServiceKey
from testing.gateway_bench import Bench

CHAT, OTHER, ANN = ServiceKey("team", "chat"), ServiceKey("team", "other"), Tenant("team", "keys", "ann")
READY = Present({"p": PresentReplica(0)})


class World:
    """A gateway's turnstiles, and the services' replicas."""

    def __init__(self) -> None:
        self.now = 0.0
        self.present: dict[ServiceKey, Present] = {CHAT: READY, OTHER: READY}
        self.turnstiles = Turnstiles(lambda: self.now, lambda key: self.present[key])
        self.num_gone_on = 0

    async def enter(self, service: ServiceKey) -> None:
        with suppress(DrainingError):
            await self.turnstiles.enter(service, ANN, 1, 1, on_wait=lambda: None)
        self.num_gone_on += 1

    async def start(self, num: int, service: ServiceKey = CHAT) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self.enter(service)) for _ in range(num)]
        await asyncio.sleep(0)
        return tasks

    def let_all_go(self, how: str) -> None:
        match how:
            case "the gateway ends":
                self.turnstiles.close()
            case "the service is deleted":
                self.turnstiles.forget_deleted(ServiceChanges(frozenset({CHAT}), frozenset({CHAT})))
            case "no replica comes":
                self.present[CHAT] = Present({})
                self.turnstiles.refresh(CHAT)
                self.now = ABSENT_SECONDS
                self.turnstiles.refresh(CHAT)


@pytest.mark.parametrize("how", ["the gateway ends", "the service is deleted", "no replica comes"])
async def test_those_who_wait_for_turns_go_on_some_tens_in_each_turn_of_the_loop(how: str) -> None:
    """Three thousand at once held up every stream for 0.2 to 0.4 s."""
    world = World()
    tasks = await world.start(500)
    assert world.num_gone_on == FIRST_REQUESTS
    tasks[100].cancel()
    world.let_all_go(how)
    for _ in range(40):
        before = world.num_gone_on
        await asyncio.sleep(0)
        assert world.num_gone_on - before <= WOKEN_AT_ONCE
    await asyncio.wait(tasks)
    assert (world.num_gone_on, world.turnstiles._arrivals) == (499, {})


async def test_a_fault_at_one_service_stops_no_turns_of_another(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, tenancy = World(), bench.gateway.tenancy
    monkeypatch.setattr(tenancy, "turnstiles", world.turnstiles)
    chat, other = await world.start(FIRST_REQUESTS + 1), await world.start(FIRST_REQUESTS + 1, OTHER)
    del world.present[CHAT]
    world.present[OTHER] = Present({"p": PresentReplica(0), "q": PresentReplica(0)})
    tenancy.refresh()
    await asyncio.wait(other, timeout=5)
    assert [all(task.done() for task in tasks) for tasks in (chat, other)] == [False, True]
    assert "team/chat" in caplog.text
    caplog.clear()
    chat[-1].cancel()


async def test_requests_of_several_services_share_a_turn_of_the_loop() -> None:
    waker, loop = Waker(), asyncio.get_running_loop()
    groups = [[loop.create_future() for _ in range(20)] for _ in range(10)]
    for group in groups:
        waker.wake({one: lambda: True for one in group})
    counts = []
    for _ in range(10):
        counts.append(sum(one.done() for group in groups for one in group))
        await asyncio.sleep(0)
    assert counts[0] == 20
    assert max(after - before for before, after in pairwise(counts)) == WOKEN_AT_ONCE
    assert counts[-1] == 200


async def test_a_fault_at_one_request_stops_none_behind_it() -> None:
    waker, loop = Waker(), asyncio.get_running_loop()
    faulty, other = loop.create_future(), loop.create_future()
    with pytest.raises(ZeroDivisionError):
        waker.wake({faulty: lambda: 1 // 0 > 0, other: lambda: True})
    await asyncio.sleep(0)
    assert other.done()
