"""Why a pod does not serve: a probe that fails, a kill, and containers that others added to the pod."""

from typing import Any

import pytest

from millrace_operator.api.conditions import Reason, render_time
from millrace_operator.api.model_types import ModelStatus
from millrace_operator.observed.pods import read_pod
from millrace_operator.observed.snapshot import Fetched
from millrace_operator.status.causes import Cause
from millrace_operator.status.status import PAUSE_SECONDS
from millrace_runtime import contract
from testing.world import World, crash_status, make_pod, ready_status
from tests.operator.test_argocd_health import judge

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


def fetching(state: dict[str, Any], **last: Any) -> dict[str, Any]:
    """A pod whose model is fetched: its replica waits for that."""
    fetcher = {"name": "fetch", "ready": False, "restartCount": 1, "state": state}
    replica = {"name": "replica", "started": False, "state": {"waiting": {"reason": "PodInitializing"}}}
    ended = {"lastState": {"terminated": last}} if last else {}
    return {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "True"}],
        "initContainerStatuses": [{**fetcher, **ended}],
        "containerStatuses": [replica],
    }


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


GATED = "millrace fetch: acme/chat is gated: ask for access at https://hub.example/acme/chat"


@pytest.mark.parametrize(
    ("state", "restarts"),
    [
        ({"terminated": {"exitCode": 1, "reason": "Error", "message": f"resolving\n{GATED}\n"}}, 0),
        ({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}}, 1),
    ],
    ids=["ended", "backing off"],
)
def test_a_model_that_cannot_be_fetched_is_told_in_the_words_of_its_source(
    state: dict[str, Any], restarts: int
) -> None:
    status = fetching(state, exitCode=1, reason="Error", message=f"resolving\n{GATED}\n")
    status["initContainerStatuses"][0]["restartCount"] = restarts
    cause = cause_of(status)
    assert cause.reason == "FetchFailed"
    assert cause.message == f"pod chat-7 cannot fetch the model: {GATED.removeprefix('millrace fetch: ')}"


def test_a_fetch_that_is_killed_for_memory_names_the_setting() -> None:
    status = fetching({"waiting": {"reason": "CrashLoopBackOff"}}, exitCode=137, reason="OOMKilled")
    assert "spec.resources.limits.memory" in cause_of(status).message
    of_job = {"containerStatuses": status["initContainerStatuses"]}
    assert "more memory than the operator's Jobs may use" in cause_of(of_job).message


def test_a_secret_that_is_not_there_is_told() -> None:
    waiting = {"reason": "CreateContainerConfigError", "message": 'secret "hub-token" not found'}
    cause = cause_of(fetching({"waiting": waiting}))
    assert cause.reason is Reason.SECRET_MISSING
    assert cause.message.endswith(
        "there is no Secret hub-token in this namespace: create it, or correct "
        "spec.model.credentials.secretName"
    )


@pytest.mark.parametrize("ended", [{}, {"exitCode": 0, "reason": "Completed"}])
def test_a_fetch_that_goes_well_is_no_cause(ended: dict[str, Any]) -> None:
    state = {"terminated": ended} if ended else {"running": {"startedAt": STARTED}}
    assert read_pod(make_pod(**fetching(state))).cause is None


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


def test_a_folder_in_a_claim_is_named_as_the_service_names_it() -> None:
    said = "no model at /mnt/model/storyy: there is nothing at that path"
    pod = make_pod("chat-7", **crash_status(code=contract.EXIT_BAD_MODEL, message=said))
    pod["spec"] = {"volumes": [{"name": "model", "persistentVolumeClaim": {"claimName": "models"}}]}
    assert "no model at pvc://models/storyy: there" in str(read_pod(pod).cause)


async def test_a_service_whose_model_is_being_fetched_says_so_and_then_that_it_loads() -> None:
    world = World(scaling=EXTERNAL, replicas=1)
    await world.reconcile()
    world.broken[world.status["updateRevision"]] = fetching({"running": {"startedAt": STARTED}})
    await world.settle()
    for name in ("Ready", "ModelReady"):
        assert world.condition(name)["reason"] == "Fetching"
        assert "is fetching the model" in world.condition(name)["message"]
    assert world.condition("Degraded")["status"] == "False"
    assert judge(world.service)[0] == "Progressing"
    done = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    await set_pods(world, {**fetching(done), "phase": "Running", "containerStatuses": [LOADING]})
    assert world.condition("ModelReady")["reason"] == "Loading"


async def test_a_service_whose_model_cannot_be_fetched_is_degraded_and_recovers_by_itself() -> None:
    world = World(scaling=EXTERNAL, replicas=1)
    await world.reconcile()
    revision = world.status["updateRevision"]
    ended = {"exitCode": 1, "reason": "Error", "message": GATED}
    world.broken[revision] = fetching({"waiting": {"reason": "CrashLoopBackOff"}}, **ended)
    await world.settle()
    assert world.condition("Degraded")["reason"] == "FetchFailed"
    assert world.condition("ModelReady")["reason"] == "FetchFailed"
    del world.broken[revision]
    await set_pods(world, ready_status())
    assert world.condition("ModelReady")["status"] == "True"
    assert world.condition("Degraded")["status"] == "False"


async def test_how_far_a_fetch_is_has_a_column_until_the_model_is_there() -> None:
    world = World(scaling=EXTERNAL, replicas=1)
    await world.reconcile()
    revision = world.status["updateRevision"]
    world.broken[revision] = fetching({"running": {"startedAt": STARTED}})
    await world.settle()
    assert "fetched" not in world.status["model"], "nobody has told yet"
    (pod,) = world.pods()
    world.fetched = {pod["metadata"]["name"]: Fetched(10**10, 42 * 10**8, 10**8)}
    await world.settle()
    assert world.status["model"]["fetched"] == "42%"
    assert "42 % of 10.0 GB" in world.condition("ModelReady")["message"]

    ended = {"exitCode": 1, "reason": "Error", "message": GATED}
    await set_pods(world, fetching({"waiting": {"reason": "CrashLoopBackOff"}}, **ended))
    assert "fetched" not in world.status["model"], "the fetch has failed"
    again = fetching({"running": {"startedAt": render_time(world.now + 1)}}, **ended)
    await set_pods(world, again)
    world.now += PAUSE_SECONDS
    world.fetched = {pod["metadata"]["name"]: Fetched(10**10, 43 * 10**8, 10**8)}
    await world.settle()
    assert world.condition("ModelReady")["reason"] == "Fetching"
    assert world.condition("Degraded")["status"] == "False"
    assert world.status["model"]["fetched"] == "43%"
    del world.broken[revision]
    await set_pods(world, ready_status())
    assert world.condition("ModelReady")["status"] == "True"
    assert "fetched" not in world.status["model"]


async def test_status_tells_the_bytes_of_a_fetch_whose_size_nobody_knows() -> None:
    world = World(scaling=EXTERNAL, replicas=1, rollout={"progressDeadline": "30m"})
    await world.reconcile()
    world.broken[world.status["updateRevision"]] = fetching({"running": {"startedAt": STARTED}})
    await world.settle()
    (pod,) = world.pods()
    for step in range(1, 4):
        world.now += 1200
        world.fetched = {pod["metadata"]["name"]: Fetched(None, step * 10**10, 8_300_000)}
        await world.settle()
        assert world.condition("Degraded")["status"] == "False"
        assert world.status["model"]["fetched"] == f"{step}0.0GB"
    text = "is fetching the model: 30.0 GB of an unknown size, 8.3 MB/s"
    assert world.condition("ModelReady")["message"].endswith(text)


@pytest.mark.parametrize("done", [0, 999, 1000, 2**60])
def test_how_much_has_been_fetched_is_a_word_that_the_schema_takes(done: int) -> None:
    for total in (None, 2**60):
        ModelStatus(servedName="m", uri="hf://org/m", fetched=Fetched(total, done, 0).summarize())
