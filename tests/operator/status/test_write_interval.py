"""Words of others that change all the time: written now and then, and the last of them always."""

from millrace_operator.controller.queue import PAUSE_SECONDS
from millrace_operator.kube.kinds import POD_DISRUPTION_BUDGET
from testing.world import KEY, World, ready_status, unschedulable_status

SECONDS = 60
TOLD_SECONDS = 5
"""After a pod's words have changed, status has them."""


async def without_room() -> World:
    world = World(scaling={"mode": "External"}, replicas=2)
    world.capacity = 1
    await world.settle()
    return world


def say(world: World, words: str) -> None:
    (pod,) = [pod for pod in world.pods() if pod["status"].get("phase") == "Pending"]
    world.cluster.put({**pod, "status": unschedulable_status(words)})


def count_writes(world: World) -> int:
    return sum(verb == "status" for verb, _, _ in world.cluster.writes)


async def test_the_schedulers_words_are_written_now_and_then_and_the_last_within_five_seconds() -> None:
    world = await without_room()
    before = count_writes(world)
    for second in range(SECONDS):
        say(world, f"0/1000 nodes are available: {500 - second} Insufficient cpu.")
        world.now += 1
        await world.reconcile_until_quiet()
    assert 0 < count_writes(world) - before <= SECONDS / (TOLD_SECONDS - PAUSE_SECONDS) + 1
    world.now += TOLD_SECONDS
    await world.reconcile_until_quiet()
    assert f"{500 - SECONDS + 1} Insufficient cpu" in world.condition("Progressing")["message"]

    say(world, "0/1000 nodes are available: another word")
    world.now += TOLD_SECONDS
    await world.reconcile_until_quiet()
    say(world, "0/1000 nodes are available: the last word")
    look = (await world.reconcile()).look_again
    assert look is not None
    assert look + PAUSE_SECONDS <= TOLD_SECONDS
    world.now += look
    await world.reconcile_until_quiet()
    assert "the last word" in world.condition("Progressing")["message"]


async def test_a_status_or_a_reason_never_waits() -> None:
    world = await without_room()
    for number in (1, 2):
        say(world, f"0/{number} nodes are available.")
        await world.reconcile_until_quiet()
    assert "0/1 nodes" in world.condition("Progressing")["message"]
    for pod in world.pods():
        world.cluster.put({**pod, "status": ready_status()})
    await world.reconcile_until_quiet()
    assert world.condition("Progressing")["reason"] == "Settled"


async def test_a_new_leader_tells_the_last_words_at_once() -> None:
    world = await without_room()
    for number in (1, 2):
        say(world, f"0/{number} nodes are available.")
        await world.reconcile_until_quiet()
    world.restart_operator()
    await world.reconcile_until_quiet()
    assert "0/2 nodes" in world.condition("Progressing")["message"]


def refuse_budgets(world: World, words: str) -> None:
    world.cluster.refuse = lambda obj: words if obj["kind"] == POD_DISRUPTION_BUDGET.kind else None


async def without_budget(words: str) -> World:
    """A service without room, whose PodDisruptionBudget is gone and may not be made again."""
    world = await without_room()
    refuse_budgets(world, words)
    world.cluster.remove(POD_DISRUPTION_BUDGET, KEY.namespace, KEY.name)
    for _ in range(4):
        await world.reconcile()
    assert words in world.condition("Degraded")["message"]
    return world


async def test_the_schedulers_words_wait_too_while_a_child_is_refused() -> None:
    world = await without_budget("a policy says no")
    before = count_writes(world)
    for second in range(SECONDS):
        say(world, f"0/1000 nodes are available: {500 - second} Insufficient cpu.")
        world.now += 1
        await world.reconcile()
    assert 0 < count_writes(world) - before <= SECONDS / (TOLD_SECONDS - PAUSE_SECONDS) + 1
    look = (await world.reconcile()).look_again
    assert look is not None
    assert look + PAUSE_SECONDS <= TOLD_SECONDS
    world.now += look
    await world.reconcile()
    assert f"{500 - SECONDS + 1} Insufficient cpu" in world.condition("Progressing")["message"]


async def test_what_the_api_server_says_of_a_child_is_told_after_the_same_pause() -> None:
    world = await without_budget("no, for the 1st time.")
    say(world, "0/1 nodes are available.")
    await world.reconcile()
    assert "0/1 nodes" in world.condition("Progressing")["message"]
    refuse_budgets(world, "no, for the 2nd time.")
    await world.reconcile()  # it is tried
    world.now += TOLD_SECONDS
    await world.reconcile()
    assert "the 2nd time" in world.condition("Degraded")["message"]
