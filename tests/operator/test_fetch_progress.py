"""Rollouts while their pods download: real questions to pods, in virtual time, and real plans."""

import json
import math
from typing import Any

import pytest

from millrace_operator.fetches import PERIOD_SECONDS, Fetches, read_answer
from millrace_operator.reconcile.pod_status import find_condition
from millrace_operator.reconcile.snapshot import Fetched
from millrace_operator.resources.conditions import render_time
from testing.world import KEY, World, ready_status
from tests.operator.reconcile.test_causes import EXTERNAL, fetching

TOTAL_BYTES = 140_000_000_000
DOWNLOAD_SECONDS = 2400.0
TICK_SECONDS = 60.0
"""From one look at all to the next."""


class Downloads(Fetches):
    """Pods of a revision that download, each from its first question on."""

    def __init__(self, world: World) -> None:
        self.changed: list[Any] = []
        super().__init__(world.cache, self.changed.append, lambda: True, clock=lambda: world.now)
        self.world = world
        self.began: dict[str, float] = {}
        self.stopped_at = math.inf
        self.quiet_until: float | None = None

    async def _ask(self, _session: Any, asked: Any) -> Fetched | None:
        began = self.began.setdefault(asked.pod, self.world.now)
        rate = TOTAL_BYTES / DOWNLOAD_SECONDS
        done = min(TOTAL_BYTES, int(rate * (min(self.world.now, self.stopped_at) - began)))
        return Fetched(TOTAL_BYTES, done, int(rate), self.world.now, quiet_until=self.quiet_until)

    def stop(self) -> None:
        """Have them all stand still from now on."""
        self.stopped_at = self.world.now

    def hand_over(self) -> "Downloads":
        """Return the same downloads as a new leader meets them, who knows nothing of them."""
        other = Downloads(self.world)
        other.began, other.stopped_at, other.quiet_until = self.began, self.stopped_at, self.quiet_until
        return other

    def is_over(self, pod: str) -> bool:
        return pod in self.began and self.world.now >= self.began[pod] + DOWNLOAD_SECONDS


class Quiet(Downloads):
    """Pods whose source asks to be left alone before it says what it has."""

    until: float

    async def _ask(self, _session: Any, _asked: Any) -> Fetched | None:
        return read_answer(json.dumps({"quietUntil": round(self.until)}).encode(), self.world.now)


def put_downloads(world: World, revision: str, **last: Any) -> Downloads:
    """Have the revision's pods download from now on; `last` is how their container ended before."""
    running = {"running": {"startedAt": render_time(world.now)}}
    world.broken[revision] = {**fetching(running, **last), "podIP": "10.0.0.1"}
    return Downloads(world)


async def make_download(deadline: str, **rollout: Any) -> tuple[World, Downloads]:
    """A service whose new revision has a pod that downloads, as the leader meets it at its start."""
    world = World(scaling=EXTERNAL, replicas=1, rollout={"progressDeadline": deadline, **rollout})
    await world.settle()
    world.edit(engine={"maxSequences": 4})
    await world.reconcile()
    downloads = put_downloads(world, world.status["updateRevision"])
    await world.settle()
    return world, downloads


async def tick(world: World, downloads: Downloads, seconds: float = TICK_SECONDS) -> None:
    """Let time pass, ask all pods, and let operator and controllers do what follows of it."""
    world.now += seconds
    world.observe()
    await downloads.refresh(None)  # type: ignore[arg-type]
    world.fetched = dict(downloads.read(KEY))
    await world.settle()


async def lose_leader(deadline: str, outage: float) -> tuple[World, Downloads]:
    """A download that gets on, and so many seconds without an operator: nothing tells what has come since."""
    world, downloads = await make_download(deadline)
    for _ in range(45):
        await tick(world, downloads, PERIOD_SECONDS)
    world.now += outage
    return world, downloads


async def test_a_quiet_that_a_source_asks_for_is_in_the_words_of_status_and_of_the_rollback() -> None:
    world = World(scaling=EXTERNAL, replicas=1, rollout={"progressDeadline": "30m"})
    await world.settle()
    world.edit(engine={"maxSequences": 4})
    await world.reconcile()
    revision = world.status["updateRevision"]
    put_downloads(world, revision)
    downloads, until = Quiet(world), world.now + 3600.0
    downloads.until = until
    await world.settle()
    await tick(world, downloads)
    words = f"is fetching the model: the source asks for quiet until {render_time(until)}"
    assert words in find_condition(world.status, "ModelReady")["message"]
    while "rejectedRevision" not in world.status and world.now < until:
        await tick(world, downloads)
    assert world.now < until
    assert words in world.status["rejectedRevision"]["message"]
    assert words in find_condition(world.status, "Degraded")["message"]


async def test_a_rollout_whose_replicas_download_one_after_the_other_is_not_late() -> None:
    world = World(scaling=EXTERNAL, replicas=2, rollout={"progressDeadline": "30m"})
    await world.settle()
    world.edit(engine={"maxSequences": 4})
    await world.reconcile()
    revision = world.status["updateRevision"]
    downloads = put_downloads(world, revision)
    await world.settle()
    began = world.now
    while world.now < began + 2 * DOWNLOAD_SECONDS + 600 and world.status["currentRevision"] != revision:
        await tick(world, downloads)
        assert "rejectedRevision" not in world.status, f"after {world.now - began:.0f} s"
        for pod in world.pods(revision):
            if downloads.is_over(pod["metadata"]["name"]):
                world.cluster.put({**pod, "status": ready_status()})
    assert world.status["currentRevision"] == revision
    assert len(downloads.began) == 2


async def test_a_pod_that_downloads_counts_as_progress_though_another_has_no_node() -> None:
    world = World(scaling=EXTERNAL, replicas=2, rollout={"progressDeadline": "30m"})
    world.capacity = 1
    await world.reconcile()
    downloads = put_downloads(world, world.status["updateRevision"])
    await world.settle()
    await tick(world, downloads)  # what it has at first may have come long ago
    for _ in range(5):
        await tick(world, downloads)
        assert world.status["rollout"]["progressedAt"] == render_time(world.now)
    assert world.condition("ModelReady")["reason"] == "Unschedulable"


async def test_a_new_leader_takes_a_download_that_stands_still_for_no_progress() -> None:
    world = World(scaling=EXTERNAL, replicas=1, rollout={"progressDeadline": "30m"})
    await world.settle()
    world.edit(engine={"maxSequences": 4})
    await world.reconcile()
    downloads = put_downloads(world, world.status["updateRevision"])
    await world.settle()
    for _ in range(5):
        await tick(world, downloads)
    progressed = world.status["rollout"]["progressedAt"]
    assert progressed == render_time(world.now)
    downloads.stop()
    for _ in range(29):
        await tick(world, downloads)
        if world.now % 600 == 0:
            world.restart_operator()
            downloads = downloads.hand_over()
    assert world.status["rollout"]["progressedAt"] == progressed
    assert "rejectedRevision" not in world.status
    await tick(world, downloads)
    assert world.status["rejectedRevision"]["reason"] == "DeadlineExceeded"


@pytest.mark.parametrize("is_asked_first", [True, False])
@pytest.mark.parametrize(("deadline", "outage"), [("30m", 1801.0), ("1m", 45.0), ("45s", 45.0)])
async def test_time_in_which_nobody_looked_does_not_count_against_a_download_that_gets_on(
    deadline: str, outage: float, *, is_asked_first: bool
) -> None:
    world, downloads = await lose_leader(deadline, outage)
    world.restart_operator()
    downloads, world.fetched = downloads.hand_over(), {}
    if is_asked_first:
        world.observe()
        await downloads.refresh(None)  # type: ignore[arg-type]
        world.fetched = dict(downloads.read(KEY))
    await world.settle()
    for _ in range(40):
        await tick(world, downloads, PERIOD_SECONDS)
    assert "rejectedRevision" not in world.status


async def test_a_new_leader_does_not_count_the_time_before_it_while_the_source_asks_for_quiet() -> None:
    """Each quiet that is told is a minute at least, so it looks as if the download stood still."""
    world, downloads = await lose_leader("30m", 1801.0)
    downloads.stop()
    until = world.now + 120
    downloads.quiet_until = until
    world.restart_operator()
    downloads, world.fetched = downloads.hand_over(), {}
    await world.settle()
    while world.now < until:
        await tick(world, downloads, PERIOD_SECONDS)
        assert "rejectedRevision" not in world.status
    downloads.quiet_until, downloads.stopped_at = None, math.inf
    for _ in range(60):
        await tick(world, downloads, PERIOD_SECONDS)
    assert "rejectedRevision" not in world.status


async def test_a_new_leader_judges_no_download_that_waits_to_begin_anew_before_it_has_heard_it() -> None:
    world, downloads = await lose_leader("30m", 1801.0)
    waits = fetching({"waiting": {"reason": "CrashLoopBackOff"}}, exitCode=1, message="the connection broke")
    world.broken[world.status["updateRevision"]] = {**waits, "podIP": "10.0.0.1"}
    for pod in world.pods(world.status["updateRevision"]):
        world.cluster.put({**pod, "status": {**waits, "podIP": "10.0.0.1"}})
    world.restart_operator()
    downloads, world.fetched = downloads.hand_over(), {}
    await world.settle()
    taken_up_at = world.now
    assert "rejectedRevision" not in world.status
    world.now = taken_up_at + 1799
    await world.settle()
    assert "rejectedRevision" not in world.status
    world.now = taken_up_at + 1800
    await world.settle()
    assert world.status["rejectedRevision"]["reason"] == "DeadlineExceeded", "it never began"


@pytest.mark.parametrize("num_answers", [0, 1, 1000])
async def test_a_new_leader_gives_up_what_brings_nothing_in_its_own_time_at_the_latest(
    num_answers: int,
) -> None:
    """Also where no pod answers any more."""
    world, downloads = await make_download("10m")
    for _ in range(5):
        await tick(world, downloads)
    downloads.stop()
    world.now += 3600
    world.restart_operator()
    downloads, world.fetched = downloads.hand_over(), {}
    await world.settle()
    taken_up_at = world.now
    for number in range(9):
        if number < num_answers:
            await tick(world, downloads, TICK_SECONDS)
        else:
            world.now += TICK_SECONDS
            await world.settle()
    is_known = num_answers > 1
    assert ("rejectedRevision" in world.status) == is_known
    world.now = taken_up_at + 600
    await world.settle()
    assert world.status["rejectedRevision"]["reason"] == "DeadlineExceeded"


async def test_a_new_leader_says_on_that_a_rollout_is_late_until_it_gets_on() -> None:
    world, downloads = await make_download("10m", rollback="Never")
    for _ in range(5):
        await tick(world, downloads)
    downloads.stop()
    for _ in range(10):
        await tick(world, downloads)
    assert world.condition("Degraded")["reason"] == "DeadlineExceeded"
    world.restart_operator()
    downloads, world.fetched = downloads.hand_over(), {}
    began = {"running": {"startedAt": render_time(world.now)}}
    for pod in world.pods(world.status["updateRevision"]):
        world.cluster.put({**pod, "status": {**fetching(began), "podIP": "10.0.0.1"}})
    await world.settle()
    for _ in range(3):
        assert world.condition("Degraded")["reason"] == "DeadlineExceeded"
        await tick(world, downloads)
    downloads.stopped_at = math.inf
    await tick(world, downloads)
    assert world.condition("Degraded")["reason"] == "Healthy"


async def test_a_fetch_that_failed_once_and_gets_on_is_no_failure_and_has_its_percent() -> None:
    world = World(scaling=EXTERNAL, replicas=1)
    await world.reconcile()
    text = "millrace fetch: https://hub answered 503, 6 times in a row"
    ended = {"exitCode": 1, "reason": "Error", "message": text}
    downloads = put_downloads(world, world.status["updateRevision"], **ended)
    await world.settle()
    assert world.condition("ModelReady")["reason"] == "FetchFailed", "it runs, and has told nothing yet"
    for _ in range(5):
        await tick(world, downloads)
    assert world.condition("ModelReady")["reason"] == "Fetching"
    assert world.condition("Degraded")["reason"] == "Healthy"
    assert world.status["model"]["fetched"] == "10%"
