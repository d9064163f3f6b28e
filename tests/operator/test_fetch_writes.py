"""How often a status is written while all pods of a service fetch its model: real decisions, real plans."""

from typing import Any

from millrace_operator.cluster.kinds import INFERENCE_SERVICE
from millrace_operator.fetches import PERIOD_SECONDS, Fetches
from millrace_operator.reconcile.snapshot import Fetched
from millrace_operator.resources.conditions import render_time
from testing.world import KEY, World
from tests.operator.reconcile.test_causes import EXTERNAL, fetching

TOTAL_BYTES = 140_000_000_000
FETCH_SECONDS = 600.0
NUM_PODS = 10
ASKING_SECONDS = 0.05
DEADLINE_SECONDS = 60.0
HASTY = {"rollout": {"progressDeadline": "1m"}}
SHORT_SECONDS = 200.0
MOST = 10 + FETCH_SECONDS / 30 + 5
"""A write for each tenth, one for each half minute, and a handful."""


class Virtual(Fetches):
    """Asks pods that each fetch at a pace of their own, in virtual time. The first few stand still."""

    def __init__(self, world: World, changed: list[Any], num_still: int = 0) -> None:
        super().__init__(world.cache, changed.append, lambda: True, clock=lambda: world.now)
        self._world = world
        self._began = world.now
        self._num_still = num_still

    async def _ask(self, _session: Any, asked: Any) -> Fetched:
        number = int(asked.pod.rpartition("-")[2])
        seconds = self._world.now - self._began
        rate = TOTAL_BYTES / FETCH_SECONDS * (1 - 0.03 * (number % NUM_PODS))
        done = 0 if number <= self._num_still else min(TOTAL_BYTES, int(rate * seconds))
        return Fetched(TOTAL_BYTES, done, int(rate), self._world.now)


async def make_fetching(num_pods: int = NUM_PODS, **spec: Any) -> World:
    """A service of which all pods have just begun to fetch."""
    world = World(scaling=EXTERNAL, replicas=num_pods, **spec)
    await world.reconcile()
    began = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    world.broken[world.status["updateRevision"]] = fetching(began)
    await world.settle()
    for number, pod in enumerate(world.pods()):
        world.cluster.put({**pod, "status": {**pod["status"], "podIP": f"10.0.0.{number}"}})
    await world.settle()
    return world


async def look(world: World, fetches: Fetches) -> None:
    """Let so much time pass as between two questions to each pod. A plan may be due before."""
    world.now += PERIOD_SECONDS / 2
    await world.reconcile_until_quiet()
    world.now += PERIOD_SECONDS / 2 + ASKING_SECONDS
    world.observe()
    await fetches.refresh(None)  # type: ignore[arg-type]
    world.fetched = dict(fetches.read(KEY))
    await world.reconcile_until_quiet()


def list_warnings(world: World) -> list[str]:
    return [event["reason"] for event in world.cluster.events if event["type"] == "Warning"]


async def test_ten_pods_that_fetch_for_ten_minutes_cost_a_write_for_each_step() -> None:
    world = await make_fetching()
    changed: list[Any] = []
    fetches, before = Virtual(world, changed), len(world.cluster.writes)
    began_at = world.now
    while world.now < began_at + FETCH_SECONDS:
        await look(world, fetches)
    written = world.cluster.writes[before:]
    assert len(world.fetched) == NUM_PODS
    assert world.condition("ModelReady")["reason"] == "Fetching"
    assert {verb for verb, kind, _ in written if kind == INFERENCE_SERVICE.kind} == {"status"}
    assert 10 < len(written) <= MOST, len(changed)


async def test_a_rollout_is_not_late_while_any_of_its_pods_gets_on() -> None:
    """What is told is of a pod that stands still. Of the other one a step comes each half minute."""
    world = await make_fetching(num_pods=2, **HASTY)
    fetches, before, began_at = Virtual(world, [], num_still=1), len(world.cluster.writes), world.now
    while world.now < began_at + SHORT_SECONDS:
        await look(world, fetches)
    assert list_warnings(world) == []
    assert len(world.cluster.writes) - before <= SHORT_SECONDS / 30 + 5


async def test_the_end_of_a_fetch_is_progress() -> None:
    """Then nothing tells how far the pod is, and it has the whole deadline to load the model."""
    world = await make_fetching(num_pods=2, **HASTY)
    fetches = Virtual(world, [], num_still=1)
    for _ in range(40):
        await look(world, fetches)
    ended_at, last = world.now, world.pods()[-1]
    done = {"terminated": {"exitCode": 0, "finishedAt": render_time(ended_at)}}
    world.cluster.put({**last, "status": fetching(done)})
    while world.now < ended_at + DEADLINE_SECONDS - 5.0:
        await look(world, fetches)
    assert list_warnings(world) == []
    while world.now < ended_at + DEADLINE_SECONDS + 5.0:
        await look(world, fetches)
    assert list_warnings(world) == ["DeadlineExceeded"]
