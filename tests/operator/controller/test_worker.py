"""When a service is looked at again. Events come beside that, and only where they bring something new."""

import copy
import itertools

import pytest

from millrace_operator.controller.queue import BACKOFF_LAST_SECONDS, PAUSE_SECONDS
from millrace_operator.controller.worker import REFUSED, SOON, Outcome, Worker
from millrace_operator.kube.errors import (
    AbsentError,
    ClusterError,
    ConflictError,
    RefusedError,
    TransientError,
)
from millrace_operator.kube.kinds import INFERENCE_SERVICE, Kind, Obj, ServiceKey
from testing.world import KEY, World, make_service
from tests.operator.model.test_fit_on_nodes import H100, L4, make_large
from tests.operator.watched import Watched

EXTERNAL = {"mode": "External"}


class Scripted:
    """A reconciler that ends as it is told."""

    def __init__(self, *ends: Outcome | ClusterError) -> None:
        self._ends = list(ends)

    async def reconcile(self, key: ServiceKey) -> Outcome:
        assert key == KEY
        end = self._ends.pop(0)
        if isinstance(end, ClusterError):
            raise end
        return end


async def find_next_look(watched: Watched, *ends: Outcome | ClusterError) -> float | None:
    """Return after how many seconds there is another look, when reconciles have ended like this."""
    worker = Worker(Scripted(*ends), watched.world.cluster, watched.world.cache, watched.queue)
    for _ in ends:
        watched.queue.add(KEY)
        watched.world.now += 2 * BACKOFF_LAST_SECONDS
        async with watched.queue.work() as key:
            await worker.work_on(key)
    return watched.queue.seconds_to_next()


@pytest.mark.parametrize(
    ("outcome", "seconds"),
    [
        (Outcome(), None),
        (Outcome(look_again=7.0), 7.0),
        (Outcome(has_moved=True), PAUSE_SECONDS),
        (Outcome(look_again=7.0, has_moved=True), PAUSE_SECONDS),
        (Outcome(retry=REFUSED), REFUSED.at_least_seconds),
        (Outcome(retry=REFUSED, has_moved=True), PAUSE_SECONDS),
        (Outcome(retry=SOON, has_moved=True), 0.05),
    ],
)
async def test_the_earliest_reason_to_look_counts(outcome: Outcome, seconds: float | None) -> None:
    watched = Watched(World())
    with watched.queue.opened():
        found = await find_next_look(watched, outcome)
    assert found == (None if seconds is None else pytest.approx(seconds))


async def test_tries_for_another_reason_make_no_wait_longer() -> None:
    watched = Watched(World())
    with watched.queue.opened():
        ends = [Outcome(retry=REFUSED)] * 20 + [Outcome(retry=SOON)]
        assert await find_next_look(watched, *ends) == pytest.approx(0.05)


async def test_500_edits_are_a_look_a_second_and_the_last_one_is_told() -> None:
    """Each changes the spec; a status of each would be 500 writes, most of them old at once."""
    world = World(scaling=EXTERNAL, replicas=1)
    watched = Watched(world)
    with watched.queue.opened():
        await watched.run(60)
        before = len(watched.looks)
        for number in range(500):
            world.edit(rollout={"progressDeadline": f"{31 + number % 2}m"})
            await watched.run(0.0095)
        await watched.run(10)
        assert len(watched.looks) - before <= 8
        assert world.status["observedGeneration"] == world.service["metadata"]["generation"]


async def test_edits_without_end_are_each_told_in_five_seconds() -> None:
    world = World(scaling=EXTERNAL, replicas=1)
    watched = Watched(world)
    with watched.queue.opened():
        await watched.run(60)
        assert await find_longest_untold(watched) <= PAUSE_SECONDS + 0.2


@pytest.mark.parametrize("good", [2, 3])
async def test_edits_of_which_most_refuse_our_write_are_told_in_time(good: int) -> None:
    """Each so many-th write of status alone is not too late for the edits that go on."""
    world = World(scaling=EXTERNAL, replicas=1)
    watched = Watched(world)
    with watched.queue.opened():
        await watched.run(60)
        refuse_statuses(world, good)
        assert await find_longest_untold(watched) <= PAUSE_SECONDS + 1


async def test_what_happens_between_edits_is_looked_at_soon_although_they_refuse_our_writes() -> None:
    world = World(scaling=EXTERNAL, replicas=1)
    watched = Watched(world)
    with watched.queue.opened():
        await watched.run(60)
        refuse_statuses(world, good=3)
        for number in range(60):
            world.edit(rollout={"progressDeadline": f"{31 + number % 2}m"})
            if number == 20:
                for child in list(world.objects("Service")):
                    remove(world, child)
            await watched.run(0.1)
            assert number < 36 or len(world.objects("Service")) == 2


async def find_longest_untold(watched: Watched) -> float:
    """Edit ten times a second for 30 s. Return the most seconds that status told nothing of an edit."""
    world, asked, longest = watched.world, {}, 0.0
    for number in range(300):
        world.edit(rollout={"progressDeadline": f"{31 + number % 2}m"})
        asked[world.service["metadata"]["generation"]] = world.now
        await watched.run(0.1)
        first_untold = world.status["observedGeneration"] + 1
        longest = max(longest, world.now - asked.get(first_untold, world.now))
    return longest


def refuse_statuses(world: World, good: int) -> None:
    """Let an edit come before each write of a status, but for each so many-th."""
    write, writes = world.cluster.apply_status, itertools.count(1)

    async def apply_status(obj: Obj) -> Obj:
        number = next(writes)
        if number % good:
            world.edit(rollout={"progressDeadline": f"{33 + number % 3}m"})
            raise ConflictError("the object has been modified")
        return await write(obj)

    world.cluster.apply_status = apply_status  # type: ignore[method-assign]


async def test_room_that_comes_while_the_status_says_that_there_is_none_is_seen() -> None:
    """A node queues only services whose status has told that their model fits on none."""
    world = make_large()
    world.put_gpu_node("first", L4)
    watched = Watched(world)
    write = world.cluster.apply_status

    async def apply_status(obj: Obj) -> Obj:
        if "DoesNotFit" in str(obj):
            world.put_gpu_node("later", H100)
            watched.watch()
        return await write(obj)

    world.cluster.apply_status = apply_status  # type: ignore[method-assign]
    with watched.queue.opened():
        await watched.run(60)
        assert sum(world.deployments().values()) == 2


async def test_room_is_seen_too_where_something_else_is_refused_for_good() -> None:
    world = make_large()
    world.put_gpu_node("first", L4)
    watched = Watched(world)
    write, apply_new = world.cluster.apply_status, world.cluster.apply_new

    async def apply_status(obj: Obj) -> Obj:
        if "DoesNotFit" in str(obj):
            world.put_gpu_node("later", H100)
            watched.watch()
        return await write(obj)

    async def refuse(obj: Obj) -> Obj:
        if obj["kind"] == "PodDisruptionBudget":
            raise RefusedError("no budgets here")
        return await apply_new(obj)

    world.cluster.apply_status = apply_status  # type: ignore[method-assign]
    world.cluster.apply_new = refuse  # type: ignore[method-assign]
    with watched.queue.opened():
        await watched.run(5)
        assert sum(world.deployments().values()) == 2


@pytest.mark.parametrize(
    "failure", [TransientError("away"), TransientError("busy", 30.0), ConflictError("of a child")]
)
async def test_edits_bring_no_hot_loop_while_statuses_fail(failure: ClusterError) -> None:
    world = World(scaling=EXTERNAL, replicas=1)
    watched = Watched(world)

    async def fail(_: Obj) -> Obj:
        raise failure

    with watched.queue.opened():
        await watched.run(60)
        world.cluster.apply_status = fail  # type: ignore[method-assign]
        before = len(watched.looks)
        await find_longest_untold(watched)  # 30 s
        assert len(watched.looks) - before <= 40, "about one a second"


@pytest.mark.parametrize("answers", ["nothing", "the old one"])
async def test_a_service_that_is_made_again_while_it_is_asked_for_stays_known(answers: str) -> None:
    """The answer comes after the event of the new one."""
    world = World(scaling=EXTERNAL, replicas=1)
    watched = Watched(world)
    with watched.queue.opened():
        await watched.run(10)
        fetch = world.cluster.fetch

        async def fetch_late(kind: Kind, namespace: str, name: str) -> Obj | None:
            if kind is not INFERENCE_SERVICE:
                return await fetch(kind, namespace, name)
            old, service = copy.deepcopy(world.service), copy.deepcopy(world.service)
            service["metadata"] |= {"uid": "another", "resourceVersion": "999999"}
            watched.recorder.record_event(INFERENCE_SERVICE, "DELETED", world.service)
            watched.recorder.record_event(INFERENCE_SERVICE, "ADDED", service)
            return old if answers == "the old one" else None

        world.cluster.fetch = fetch_late  # type: ignore[method-assign]
        await find_next_look(watched, AbsentError("gone"))
        found = world.cache.service(KEY)
        assert found is not None
        assert found["metadata"]["uid"] == "another"


async def test_a_service_that_is_made_again_while_its_status_is_written_gets_children_of_its_own() -> None:
    """The answer comes after the event of the new one. No pod may be made for the old one."""
    world = World(scaling=EXTERNAL, replicas=1)
    watched = Watched(world)
    write = world.cluster.apply_status

    async def make_again(obj: Obj) -> Obj:
        world.cluster.apply_status = write  # type: ignore[method-assign]
        written = await write(obj)
        world.cluster.remove(INFERENCE_SERVICE, *KEY)
        watched.watch()
        world.cluster.put(make_service(scaling=EXTERNAL, replicas=1))
        watched.watch()
        return written

    with watched.queue.opened():
        await watched.run(10)
        world.edit(replicas=2)
        world.cluster.apply_status = make_again  # type: ignore[method-assign]
        await watched.run(10)
    created = [write for write in world.cluster.writes if write[:2] == ("create", "Deployment")]
    assert len(created) == 2, "one of each service"
    assert world.status["readyReplicas"] == 1


async def test_what_happens_between_edits_is_looked_at_within_a_second() -> None:
    world = World(scaling=EXTERNAL, replicas=1)
    watched = Watched(world)
    with watched.queue.opened():
        await watched.run(60)
        for number in range(20):
            world.edit(rollout={"progressDeadline": f"{31 + number % 2}m"})
            await watched.run(0.1)
        for child in list(world.objects("Service")):
            remove(world, child)
        for number in range(12):
            world.edit(rollout={"progressDeadline": f"{31 + number % 2}m"})
            await watched.run(0.1)
        assert len(world.objects("Service")) == 2


@pytest.mark.parametrize("failure", [TransientError("away"), ConflictError("modified")])
async def test_an_edit_that_a_conflict_showed_is_looked_at_whatever_failed_before(
    failure: ClusterError,
) -> None:
    """The fetch after the conflict has put it into the cache, so its event is no news."""
    world = World(scaling=EXTERNAL, replicas=1)
    watched = Watched(world)
    with watched.queue.opened():
        await watched.run(10)
        await find_next_look(watched, *[failure] * 11)
        world.edit(replicas=3)
        assert await find_next_look(watched, ConflictError("the object has been modified")) < 2
        before = len(watched.looks)
        await watched.run(3)
        assert len(watched.looks) > before
        assert world.deployments() == {world.status["updateRevision"]: 3}


async def test_an_answer_that_nobody_can_read_ends_no_worker(caplog: pytest.LogCaptureFixture) -> None:
    """A proxy before the API server answers a read with a page of its own, just after a conflict."""

    async def answer(*_: object) -> Obj:
        return {"status": "maintenance"}

    watched = Watched(World(scaling=EXTERNAL, replicas=1))
    with watched.queue.opened():
        await watched.run(10)
        watched.world.cluster.fetch = answer  # type: ignore[method-assign]
        ends = [ConflictError("the object has been modified")] * 3
        assert await find_next_look(watched, *ends) == pytest.approx(0.2)
    assert caplog.text.count("shop/chat: not reconciled; again in") == 3
    assert "Traceback" in caplog.text


@pytest.mark.parametrize(("before", "after"), [(2, 1), (2, 5)])
async def test_what_is_refused_for_good_slows_nothing_else(before: int, after: int) -> None:
    world = World(scaling=EXTERNAL, replicas=before)
    world.cluster.refuse = lambda obj: "denied" if obj["kind"] == "PodDisruptionBudget" else None
    watched = Watched(world)
    with watched.queue.opened():
        await watched.run(1200)
        world.edit(replicas=after)
        touch_deployment(world)  # so that the first apply of its count is a conflict
        watched.recorder.record_event(INFERENCE_SERVICE, "MODIFIED", world.service)
        await watched.run(5)
    assert world.deployments() == {world.status["updateRevision"]: after}


def touch_deployment(world: World) -> None:
    """Let Kubernetes' own controller write something on it of which no event has come yet."""
    (found,) = world.objects("Deployment")
    annotations = {**found["metadata"].get("annotations", {}), "deployment.kubernetes.io/revision": "1"}
    world.cluster.put({**found, "metadata": {**found["metadata"], "annotations": annotations}})


async def test_a_world_that_is_followed_by_events_alone_comes_to_rest() -> None:
    """From nothing to three replicas, through a new revision, to none and back; and then nobody looks."""
    world = World(scaling=EXTERNAL, replicas=3)
    watched = Watched(world)
    with watched.queue.opened():
        await watched.run(60)
        assert world.condition("UpToDate")["status"] == "True"
        world.edit(engine={"maxSequences": 4})
        await watched.run(120)
        assert world.deployments() == {world.status["updateRevision"]: 3}
        for count in (0, 2):
            world.edit(replicas=count)
            await watched.run(120)
            assert (sum(world.deployments().values()), len(world.pods())) == (count, count)
        looks, writes = len(watched.looks), len(world.cluster.writes)
        await watched.run(3600)
        assert len(world.cluster.writes) == writes
        assert len(watched.looks) - looks <= 1


async def test_what_somebody_undoes_is_done_again_within_a_second() -> None:
    world = World(scaling=EXTERNAL, replicas=1)
    watched = Watched(world)
    with watched.queue.opened():
        await watched.run(60)
        for child in list(world.objects("Service")):
            remove(world, child)
        await watched.run(1.1)
        assert len(world.objects("Service")) == 2


def remove(world: World, obj: Obj) -> None:
    del world.cluster.objects[next(key for key, held in world.cluster.objects.items() if held is obj)]
