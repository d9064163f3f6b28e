import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable

import pytest

from millrace_operator.controller import leader_election as module
from millrace_operator.controller.leader_election import Election
from millrace_operator.kube.errors import ConflictError, TransientError
from millrace_operator.kube.fake import FakeCluster
from millrace_operator.kube.kinds import Kind, Obj
from millrace_operator.kube.lease import (
    DEADLINE_SECONDS,
    DURATION_SECONDS,
    LOOK_SECONDS,
    RETRY_SECONDS,
    LeaseView,
)


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1_700_000_000 + self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def candidate(cluster: FakeCluster, name: str) -> Election:
    return Election(cluster, LeaseView(name, "millrace-system", "millrace-operator"))


async def test_who_waits_looks_often_and_is_there_when_the_lease_runs_out(clock: Clock) -> None:
    cluster = FakeCluster()
    first, view = candidate(cluster, "a"), LeaseView("b", "millrace-system", "millrace-operator")
    second = Election(cluster, view)
    await first.campaign()
    await second.campaign()
    assert view.seconds_to_look(clock.now) == LOOK_SECONDS
    clock.now += DURATION_SECONDS - 0.25
    await second.campaign()
    assert view.seconds_to_look(clock.now) == pytest.approx(0.25)
    clock.now += view.seconds_to_look(clock.now)
    await second.campaign()
    assert second.is_leader()
    assert view.seconds_to_look(clock.now) == RETRY_SECONDS


@pytest.mark.usefixtures("clock")
async def test_the_first_leads_and_the_second_waits() -> None:
    cluster = FakeCluster()
    first, second = candidate(cluster, "a"), candidate(cluster, "b")
    await first.campaign()
    await second.campaign()
    assert (first.is_leader(), second.is_leader(), second.holder) == (True, False, "a")


async def test_a_lease_that_stands_still_is_taken_over_by_the_others_own_clock(clock: Clock) -> None:
    cluster = FakeCluster()
    first, second = candidate(cluster, "a"), candidate(cluster, "b")
    await first.campaign()
    await second.campaign()
    clock.now += DURATION_SECONDS - 1
    await second.campaign()
    assert not second.is_leader()
    clock.now += 1
    await second.campaign()
    assert second.is_leader()
    assert not first.is_leader()


async def test_a_renewed_lease_is_not_taken(clock: Clock) -> None:
    cluster = FakeCluster()
    first, second = candidate(cluster, "a"), candidate(cluster, "b")
    for _ in range(20):
        await first.campaign()
        await second.campaign()
        clock.now += 2
    assert not second.is_leader()


async def test_leading_ends_at_the_deadline_before_anyone_else_can_begin(clock: Clock) -> None:
    leader = candidate(FakeCluster(), "a")
    await leader.campaign()
    clock.now += DEADLINE_SECONDS
    assert not leader.is_leader()
    assert DEADLINE_SECONDS < DURATION_SECONDS


async def test_no_write_lasts_until_another_may_lead(clock: Clock) -> None:
    view = LeaseView("a", "millrace-system", "millrace-operator")
    assert view.seconds_to_write(clock.now) == 0
    await Election(FakeCluster(), view).campaign()
    renewed = clock.now
    while view.is_held(clock.now):
        seconds = view.seconds_to_write(clock.now)
        assert seconds >= 4
        assert clock.now + seconds < renewed + DURATION_SECONDS
        clock.now += 0.5
    assert view.seconds_to_write(clock.now) == 0


@pytest.mark.usefixtures("clock")
async def test_an_api_server_that_is_away_gives_no_lease() -> None:
    cluster = FakeCluster()
    cluster.faults.append(TransientError("away"))
    leader = candidate(cluster, "a")
    with pytest.raises(TransientError):
        await leader.campaign()
    assert not leader.is_leader()


class DelayedCluster(FakeCluster):
    """Before a request arrives others may write, and time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: deque[Callable[[], Awaitable[None]]] = deque()

    async def fetch(self, kind: Kind, namespace: str, name: str) -> Obj | None:
        if self.meanwhile:
            await self.meanwhile.popleft()()
        return await super().fetch(kind, namespace, name)


async def test_a_lease_that_took_long_to_read_is_not_old_for_that(clock: Clock) -> None:
    cluster = DelayedCluster()
    first, second = candidate(cluster, "a"), candidate(cluster, "b")
    await first.campaign()

    async def renew_late() -> None:
        clock.now += 8
        await first.campaign()

    cluster.meanwhile.append(renew_late)
    await second.campaign()
    clock.now += DURATION_SECONDS - 1
    await second.campaign()
    assert not second.is_leader()
    clock.now += 1
    await second.campaign()
    assert second.is_leader()


async def test_a_renewal_counts_from_before_its_requests(clock: Clock) -> None:
    cluster = DelayedCluster()
    leader = candidate(cluster, "a")

    async def pass_time() -> None:
        clock.now += DEADLINE_SECONDS

    cluster.meanwhile.append(pass_time)
    await leader.campaign()
    assert not leader.is_leader()


class SlowCluster(FakeCluster):
    """Between an answer and its arrival others may write."""

    async def fetch(self, kind: Kind, namespace: str, name: str) -> Obj | None:
        found = await super().fetch(kind, namespace, name)
        await asyncio.sleep(0)
        return found


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("is_there", [False, True], ids=["to create it", "to replace it"])
async def test_a_race_has_one_winner(*, is_there: bool) -> None:
    cluster = SlowCluster()
    if is_there:
        former = candidate(cluster, "former")
        await former.campaign()
        await former.release()
    racers = [candidate(cluster, "a"), candidate(cluster, "b")]
    ends = await asyncio.gather(*(racer.campaign() for racer in racers), return_exceptions=True)
    assert [type(end) for end in ends] == [type(None), ConflictError]
    assert [racer.is_leader() for racer in racers] == [True, False]
    assert cluster.objects[("Lease", "millrace-system", "millrace-operator")]["spec"]["holderIdentity"] == "a"


@pytest.mark.usefixtures("clock")
async def test_a_released_lease_is_free_at_once() -> None:
    cluster = FakeCluster()
    first, second = candidate(cluster, "a"), candidate(cluster, "b")
    await first.campaign()
    await first.release()
    assert not first.is_leader()
    await second.campaign()
    assert second.is_leader()


@pytest.mark.usefixtures("clock")
async def test_waiting_to_lead_ends_when_leading() -> None:
    leader = candidate(FakeCluster(), "a")
    await leader.campaign()
    await leader.wait_for(leading=True)


async def test_who_waits_to_lead_is_told_at_once_and_looks_only_then() -> None:
    leader = candidate(FakeCluster(), "a")
    waiting = asyncio.create_task(leader.wait_for(leading=True))
    await asyncio.sleep(0)
    await leader.campaign()
    await asyncio.wait_for(waiting, 5)


async def test_a_lease_that_nobody_renews_is_lost_by_the_clock() -> None:
    leader = candidate(FakeCluster(), "a")
    await leader.campaign()
    leader._view.renewed_at = time.monotonic() - DEADLINE_SECONDS + 0.05
    await asyncio.wait_for(leader.wait_for(leading=False), 5)
    assert not leader.is_leader()


async def test_who_leads_on_is_not_told_that_it_is_over(clock: Clock) -> None:
    leader = candidate(FakeCluster(), "a")
    await leader.campaign()
    clock.now += DEADLINE_SECONDS - 0.01
    waiting = asyncio.create_task(leader.wait_for(leading=False))
    await asyncio.sleep(0)
    await leader.campaign()
    await asyncio.sleep(0.05)  # by now the first renewal alone would have run out
    assert not waiting.done()
    await leader.release()
    await asyncio.wait_for(waiting, 5)


async def test_waiting_for_the_lease_can_be_cancelled() -> None:
    waiting = asyncio.create_task(candidate(FakeCluster(), "a").wait_for(leading=True))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
