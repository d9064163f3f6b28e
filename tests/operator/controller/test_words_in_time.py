"""From a pod's event to its own words in the service's status: one look, after the queue's pause at most."""

from typing import Any

import pytest

from millrace_operator.controller.queue import PAUSE_SECONDS, WorkQueue
from millrace_operator.controller.watch_recorder import WatchRecorder
from millrace_operator.kube.kinds import POD, Obj
from testing.world import KEY, World, crash_status, unschedulable_status
from tests.operator.controller.test_queue import Clock
from tests.operator.status.test_causes import READY_LOST, UNREADY, beside, running, waiting

NO_NODE = "0/12 nodes are available: 4 Insufficient cpu, 8 Insufficient nvidia.com/gpu."
KINDS: dict[str, tuple[dict[str, Any], str]] = {
    "image": (
        {"containerStatuses": [{"name": "replica", "restartCount": 0, **waiting("ImagePullBackOff")}]},
        "ImagePullBackOff: details",
    ),
    "refused container": (
        {
            "containerStatuses": [
                {"name": "replica", "restartCount": 0, **waiting("CreateContainerConfigError")}
            ]
        },
        "CreateContainerConfigError: details",
    ),
    "no node": (unschedulable_status(NO_NODE), NO_NODE),
    "memory": (
        {
            "containerStatuses": [
                {
                    "name": "replica",
                    "restartCount": 2,
                    **waiting("CrashLoopBackOff", exitCode=137, reason="OOMKilled", message="layer 17"),
                }
            ]
        },
        "OOMKilled, exit status 137, again and again",
    ),
    "exit code and last line": (
        crash_status("step 7\nCUDA error: an illegal memory access\n", code=134),
        "CUDA error: an illegal memory access (exit status 134",
    ),
    "model": (
        crash_status("there is no config.json", code=65),
        "cannot load the model: there is no config.json",
    ),
    "failed probe": (
        running(is_ready=False, since=READY_LOST),
        f"its readiness probe fails: {UNREADY}",
    ),
    "sidecar": (
        beside(waiting("CrashLoopBackOff", exitCode=1, reason="Error", message="no certificate")),
        "ended: no certificate (exit status 1",
    ),
}


async def with_new_pod() -> tuple[World, Obj]:
    """A service whose only pod has no node yet."""
    world = World(scaling={"mode": "External"}, replicas=1)
    await world.reconcile_until_quiet()
    world.broken[world.status["updateRevision"]] = {}
    world.run_controllers()
    await world.reconcile_until_quiet()
    (pod,) = world.pods()
    return world, pod


@pytest.mark.parametrize("kind", KINDS)
async def test_the_words_are_told_in_one_look_after_a_pause_at_most(kind: str) -> None:
    status, words = KINDS[kind]
    world, pod = await with_new_pod()
    clock, told = Clock(), world.cluster.put({**pod, "status": status})
    queue = WorkQueue(clock)
    with queue.opened():
        queue.add(KEY)
        queue.done(await queue.get())  # it was looked at a moment ago
        WatchRecorder(world.cache, queue).record_event(POD, "MODIFIED", told)
        wait = queue.seconds_to_next()
        assert wait is not None
        assert wait <= PAUSE_SECONDS
        clock.now += wait
        assert await queue.get() == KEY
        world.now += wait
        await world.reconcile(is_stale=True)  # with what the event brought, and nothing else
    messages = [one["message"] for one in world.status["conditions"] if one["type"] in ("Ready", "UpToDate")]
    assert len(messages) == 2
    for message in messages:
        assert pod["metadata"]["name"] in message
        assert words in message
