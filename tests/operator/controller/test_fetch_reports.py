"""Rollouts, and Jobs that fill a claim, while a model is downloaded: the kubelet alone says what counts."""

from typing import Any

import pytest

from millrace_operator.api.conditions import render_time
from millrace_operator.observed.fetch_run import MOST_RESTARTS, find_fetch_time, read_fetch
from testing.world import World, ready_status
from tests.operator.status.test_causes import EXTERNAL, fetching

DEADLINE_SECONDS = 1800.0
FAILED = {"exitCode": 1, "reason": "Error", "message": "millrace fetch: fewer than 65536 bytes/s for 120 s"}


def run(
    world: World, restarts: int = 0, state: dict[str, Any] | None = None, *, began: float | None = None
) -> dict[str, Any]:
    """The status of a pod whose container has run so often before, and runs since now."""
    ended = {**FAILED, "finishedAt": render_time(world.now)} if restarts else {}
    status = fetching(state or {"running": {"startedAt": render_time(world.now)}}, **ended)
    status["initContainerStatuses"][0]["restartCount"] = restarts
    return {**status, "startTime": render_time(world.now if began is None else began)}


def end(world: World, code: int = 0) -> dict[str, Any]:
    return {"terminated": {**FAILED, "exitCode": code, "finishedAt": render_time(world.now)}}


def put(world: World, status: dict[str, Any]) -> None:
    """Have the new revision's pods say so."""
    world.broken[world.status["updateRevision"]] = status
    for pod in world.pods(world.status["updateRevision"]):
        world.cluster.put({**pod, "status": status})


async def make_download() -> World:
    """A service whose new revision has a pod that downloads. No pod is asked, and none tells anything."""
    world = World(scaling=EXTERNAL, replicas=1, rollout={"progressDeadline": "30m"})
    await world.settle()
    world.edit(engine={"maxSequences": 4})
    await world.reconcile()
    put(world, run(world))
    await world.settle()
    return world


async def wait(world: World, seconds: float) -> None:
    world.now += seconds
    await world.settle()


async def test_a_download_of_hours_is_not_late_whoever_leads_and_its_end_begins_the_deadline() -> None:
    world = await make_download()
    for _ in range(6):
        await wait(world, DEADLINE_SECONDS)
        world.restart_operator()
    assert world.condition("Degraded")["reason"] == "Healthy"
    assert world.condition("ModelReady")["reason"] == "Fetching"
    put(world, run(world, state=end(world)))
    await wait(world, DEADLINE_SECONDS - 1)
    assert "rejectedRevision" not in world.status
    await wait(world, 2)
    assert world.status["rejectedRevision"]["reason"] == "DeadlineExceeded"


async def test_a_download_that_comes_to_its_end_is_rolled_out() -> None:
    world = await make_download()
    await wait(world, 2 * DEADLINE_SECONDS)
    revision = world.status["updateRevision"]
    world.broken.clear()
    for pod in world.pods(revision):
        world.cluster.put({**pod, "status": ready_status()})
    await world.settle()
    assert world.status["currentRevision"] == revision


async def test_an_outage_of_minutes_does_not_throw_a_long_download_away() -> None:
    world = await make_download()
    began = world.now
    await wait(world, 2400.0)
    for restarts, seconds in ((1, 20.0), (2, 35.0), (3, 55.0), (4, 95.0), (5, 180.0)):
        put(world, run(world, restarts, {"waiting": {"reason": "CrashLoopBackOff"}}, began=began))
        await wait(world, seconds)
        assert world.condition("Degraded")["reason"] == "FetchFailed"
        put(world, run(world, restarts, began=began))
        await wait(world, DEADLINE_SECONDS if restarts == 5 else 20.0)
        assert world.condition("Degraded")["reason"] == "Healthy", "it runs again"
    assert "rejectedRevision" not in world.status
    assert "it failed before: fewer than 65536 bytes/s" in world.condition("ModelReady")["message"]


async def test_a_container_that_fails_every_five_minutes_is_late_in_the_end() -> None:
    world = await make_download()
    began, restarts = world.now, 0
    while "rejectedRevision" not in world.status and restarts < 30:
        restarts += 1
        put(world, run(world, restarts, began=began))
        await wait(world, 300.0)
    assert 1800.0 <= world.now - began <= 2 * DEADLINE_SECONDS
    assert world.status["rejectedRevision"]["reason"] == "DeadlineExceeded"
    assert "fewer than 65536 bytes/s" in world.status["rejectedRevision"]["message"]


async def test_between_two_runs_the_deadline_goes_on_and_the_failure_is_told() -> None:
    world = await make_download()
    await wait(world, DEADLINE_SECONDS + 1)
    put(world, run(world, 1, {"waiting": {"reason": "CrashLoopBackOff"}}))
    await world.settle()
    assert world.condition("Degraded")["reason"] == "FetchFailed"
    await wait(world, DEADLINE_SECONDS - 1)
    assert "rejectedRevision" not in world.status
    await wait(world, 2)
    assert world.status["rejectedRevision"]["reason"] == "DeadlineExceeded"


@pytest.mark.parametrize(
    ("restarts", "num_ended", "state", "since"),
    [
        (0, 0, "running", 5000.0),
        (MOST_RESTARTS, 0, "running", 5000.0),
        (MOST_RESTARTS + 1, 0, "running", None),
        (1, MOST_RESTARTS - 1, "running", 5000.0),
        (1, MOST_RESTARTS, "running", None),
        (MOST_RESTARTS + 8, 0, "running after 80 minutes", 5000.0),
        (MOST_RESTARTS + 9, 0, "running after 80 minutes", None),
        (0, 0, "ended", 100.0),
        (9, 0, "ended", 100.0),
        (0, MOST_RESTARTS + 1, "ended", None),
        (1, 0, "failed", 100.0),
        (0, 0, "waiting", None),
    ],
)
def test_what_counts_of_a_fetch(restarts: int, num_ended: int, state: str, since: float | None) -> None:
    world = World()
    world.now = 100.0
    states = {
        "running": {"running": {"startedAt": render_time(world.now)}},
        "ended": end(world),
        "failed": end(world, 1),
        "waiting": {"waiting": {"reason": "PodInitializing"}},
    }
    status = fetching(states[state.split(maxsplit=1)[0]])
    status["initContainerStatuses"][0]["restartCount"] = restarts
    status["startTime"] = render_time(5000.0 - 80 * 60 if "after 80 minutes" in state else 5000.0)
    assert find_fetch_time([read_fetch(status)], num_ended, 5000.0) == since
