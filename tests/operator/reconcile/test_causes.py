"""Why a pod does not serve: a probe that fails, a kill, and containers that others added to the pod."""

from typing import Any

import pytest

from millrace_operator.reconcile.causes import Cause
from millrace_operator.reconcile.pods import read_pod
from millrace_operator.resources.conditions import Reason
from tests.operator.test_argocd_health import judge
from tests.operator.world import World, make_pod, ready_status

STARTED, READY_LOST = "2026-01-01T00:01:00Z", "2026-01-01T00:09:00Z"
EXTERNAL = {"mode": "External", "minReplicas": 1, "maxReplicas": 1}
CRASHED = {"terminated": {"exitCode": 1, "reason": "Error"}}
UNREADY = "containers with unready status: [replica]"
LOADING = {"name": "replica", "started": False, "ready": False, "state": {"running": {"startedAt": STARTED}}}


def running(*, is_ready: bool, since: str, message: str = UNREADY, **container: Any) -> dict[str, Any]:
    """A replica that has started and is not Ready since then, as a kubelet says it."""
    reason = {"reason": "ContainersNotReady", "message": message} if message else {}
    replica = {"name": "replica", "started": True, "ready": is_ready, **container}
    return {
        "phase": "Running",
        "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": "False", "lastTransitionTime": since, **reason},
        ],
        "containerStatuses": [{**replica, "state": {"running": {"startedAt": STARTED}}}],
    }


def beside(status: dict[str, Any], *, is_first: bool = False, **own: Any) -> dict[str, Any]:
    """A container of somebody else beside the replica, or before it."""
    field = "initContainerStatuses" if is_first else "containerStatuses"
    other = {"name": "proxy", "ready": False, "restartCount": 3, **status}
    return {"containerStatuses": [{**LOADING, **own}], field: [*([] if is_first else [LOADING]), other]}


def waiting(why: str, **last: Any) -> dict[str, Any]:
    state = {"waiting": {"reason": why, "message": "details"}}
    return {"state": state, "lastState": {"terminated": last} if last else {}}


def cause_of(status: dict[str, Any]) -> Cause:
    cause = read_pod(make_pod("chat-7", **status)).cause
    assert cause is not None
    return cause


def test_a_probe_that_fails_after_the_pod_was_ready_is_told_and_the_pod_is_kept() -> None:
    pod = read_pod(make_pod("chat-7", **running(is_ready=False, since=READY_LOST)))
    words = f"pod chat-7 runs, and its readiness probe fails: {UNREADY}"
    assert pod.cause == Cause(Reason.PROBE_FAILED, words)
    assert pod.is_serving


def test_a_pod_that_has_started_and_was_never_ready_has_no_failing_probe() -> None:
    pod = read_pod(make_pod(**running(is_ready=False, since="2026-01-01T00:00:01Z")))
    assert (pod.cause, pod.is_serving) == (None, True)


def test_a_crash_before_it_was_ready_is_history() -> None:
    crashed = {"lastState": {"terminated": {"exitCode": 1, "reason": "Error"}}, "restartCount": 1}
    assert cause_of(running(is_ready=False, since=READY_LOST, **crashed)).reason is Reason.PROBE_FAILED
    before = running(is_ready=False, since="2026-01-01T00:00:30Z", **crashed)
    assert cause_of(before).reason is Reason.CRASHING


def test_a_pod_whose_probe_succeeds_and_that_is_not_ready_says_no_more_than_is_known() -> None:
    cause = cause_of(running(is_ready=True, since=READY_LOST, message=""))
    assert cause.reason is Reason.NOT_READY
    assert "its readiness probe succeeds" in cause.message
    assert "its node" in cause.message
    told = cause_of(running(is_ready=True, since=READY_LOST, message="unready: [proxy]"))
    assert told.message.endswith("unready: [proxy]")


def test_a_kill_that_is_not_for_memory_says_what_it_may_be() -> None:
    ended = {"terminated": {"exitCode": 137, "reason": "Error", "message": "step 7\n"}}
    cause = cause_of({"containerStatuses": [{"name": "replica", "restartCount": 3, "lastState": ended}]})
    assert cause.reason is Reason.CRASHING
    assert "was killed (SIGKILL, exit status 137, again and again)" in cause.message
    assert "probably" in cause.message
    assert "liveness probe" in cause.message
    assert cause.message.endswith("Its last line: step 7")


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(
    ("status", "reason", "words"),
    [
        (waiting("ImagePullBackOff"), Reason.IMAGE_UNAVAILABLE, "ImagePullBackOff: details"),
        (waiting("ErrImagePull"), Reason.IMAGE_UNAVAILABLE, "ErrImagePull: details"),
        (waiting("CreateContainerConfigError"), Reason.CONTAINER_REFUSED, "ConfigError: details"),
        (
            waiting("CrashLoopBackOff", exitCode=65, reason="Error", message="no such file"),
            Reason.SIDECAR_FAILED,
            "ended: no such file (exit status 65, again and again)",
        ),
        (
            waiting("CrashLoopBackOff", exitCode=137, reason="OOMKilled"),
            Reason.SIDECAR_FAILED,
            "was killed for using more memory than its limit (OOMKilled, exit status 137, again and again)",
        ),
        (
            {"state": {"terminated": {"exitCode": 1, "reason": "Error"}}},
            Reason.SIDECAR_FAILED,
            "ended with exit status 1",
        ),
    ],
)
def test_another_container_that_fails_is_named(
    status: dict[str, Any], reason: Reason, words: str, *, is_first: bool
) -> None:
    cause = cause_of(beside(status, is_first=is_first))
    assert cause.reason is reason
    assert "container proxy of pod chat-7" in cause.message
    assert words in cause.message


@pytest.mark.parametrize(
    "status",
    [
        {"state": {"terminated": {"exitCode": 0, "reason": "Completed"}}},
        {"state": {"running": {}}, "lastState": CRASHED, "ready": True},
        {"state": {"running": {}}, "lastState": {}},
        waiting("PodInitializing"),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_another_container_that_works_is_no_cause(status: dict[str, Any], *, is_first: bool) -> None:
    assert read_pod(make_pod(**beside(status, is_first=is_first))).cause is None


@pytest.mark.parametrize("is_first", [True, False])
def test_the_words_stay_while_another_container_ends_again_and_again(*, is_first: bool) -> None:
    states: list[dict[str, Any]] = [
        waiting("CrashLoopBackOff", exitCode=1, reason="Error"),
        {"state": {"running": {}}, "lastState": CRASHED},
        {"state": CRASHED, "lastState": CRASHED},
    ]
    assert len({cause_of(beside(state, is_first=is_first)) for state in states}) == 1


async def served(num_replicas: int = 1, **spec: Any) -> World:
    world = World(scaling=EXTERNAL, replicas=num_replicas, **spec)
    await world.settle()
    return world


async def set_pods(world: World, status: dict[str, Any], revision: str | None = None) -> None:
    for pod in world.pods(revision):
        world.cluster.put({**pod, "status": status})
    await world.settle()


async def test_a_service_whose_probe_fails_says_so_and_recovers() -> None:
    world = await served()
    await set_pods(world, running(is_ready=False, since=READY_LOST))
    ready, degraded = world.condition("Ready"), world.condition("Degraded")
    assert (ready["status"], ready["reason"]) == ("False", "ProbeFailed")
    assert "its readiness probe fails" in ready["message"]
    assert (degraded["status"], degraded["reason"]) == ("True", "ProbeFailed")
    assert judge(world.service)[0] == "Degraded"
    await set_pods(world, ready_status())
    assert world.condition("Degraded")["status"] == "False"


async def test_a_pod_that_has_started_and_is_not_ready_yet_loads_no_model() -> None:
    world = await served()
    await set_pods(world, running(is_ready=False, since="2026-01-01T00:00:01Z"))
    ready = world.condition("Ready")
    assert ready["reason"] == "Loading"
    assert "has loaded the model, and is not Ready yet" in ready["message"]
    assert world.condition("Degraded")["status"] == "False"


async def test_old_replicas_whose_probe_fails_are_kept_while_the_new_ones_start() -> None:
    world = await served(2)
    old = world.status["currentRevision"]
    await set_pods(world, running(is_ready=False, since=READY_LOST))
    world.edit(engine={"maxSequences": 4})
    await world.reconcile()
    world.broken[world.status["updateRevision"]] = {"containerStatuses": [LOADING]}
    await world.settle()
    assert len(world.pods(old)) == 2


async def test_a_sidecar_that_fails_beside_a_canary_is_not_the_revisions_fault() -> None:
    world = await served(4, rollout={"canary": {}})
    world.edit(engine={"maxSequences": 4})
    await world.settle()
    assert world.condition("Progressing")["reason"] == "Canary"
    sidecar = beside(waiting("CrashLoopBackOff", exitCode=1, reason="Error"), state={"running": {}})
    await set_pods(world, sidecar, world.status["updateRevision"])
    assert "rejectedRevision" not in world.status
    assert world.condition("Degraded")["reason"] == "SidecarFailed"
