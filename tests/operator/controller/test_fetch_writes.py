"""How often a status is written while all pods of a service fetch its model: real decisions, real plans."""

from typing import Any

from millrace_operator.controller.fetch_progress import PERIOD_SECONDS, Fetches
from millrace_operator.kube.kinds import INFERENCE_SERVICE
from millrace_operator.observed.snapshot import Fetched
from testing.world import KEY, World
from tests.operator.status.test_causes import EXTERNAL, fetching

TOTAL_BYTES = 140_000_000_000
FETCH_SECONDS = 600.0
NUM_PODS = 10
ASKING_SECONDS = 0.05
MOST = 10 + FETCH_SECONDS / 30 + 5
"""A write for each tenth, one for each half minute, and a handful."""


class Virtual(Fetches):
    """Asks pods that each fetch at a pace of their own, in virtual time."""

    def __init__(self, world: World, changed: list[Any]) -> None:
        super().__init__(world.cache, changed.append, lambda: True, clock=lambda: world.now)
        self._world = world
        self._began = world.now

    async def _ask(self, _session: Any, _gate: Any, asked: Any) -> Fetched:
        number = int(asked.name.rpartition("-")[2])
        seconds = self._world.now - self._began
        rate = TOTAL_BYTES / FETCH_SECONDS * (1 - 0.03 * (number % NUM_PODS))
        done = min(TOTAL_BYTES, int(rate * seconds))
        return Fetched(TOTAL_BYTES, done, int(rate))


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
