from typing import Any

import pytest

from millrace_operator.api.conditions import Reason
from millrace_operator.observed.pods import read_pod
from millrace_operator.status.causes import Cause
from testing.world import crash_status, make_pod, ready_status, unschedulable_status


def test_a_ready_pod_serves_and_has_no_cause() -> None:
    pod = read_pod(make_pod(**ready_status()))
    assert (pod.is_ready, pod.is_serving, pod.cause) == (True, True, None)


def test_a_loading_pod_has_no_cause_either() -> None:
    running = {"containerStatuses": [{"name": "replica", "started": False, "state": {"running": {}}}]}
    pod = read_pod(make_pod(**running))
    assert (pod.is_serving, pod.cause) == (False, None)


def test_a_replica_that_was_ready_once_still_counts_as_serving() -> None:
    overloaded = {**ready_status(), "conditions": [{"type": "Ready", "status": "False"}]}
    assert read_pod(make_pod(**overloaded)).is_serving


@pytest.mark.parametrize(
    ("status", "reason", "text"),
    [
        (unschedulable_status(), Reason.UNSCHEDULABLE, "1 Insufficient nvidia.com/gpu"),
        (crash_status("loading\nno such folder: /m\n", code=65), Reason.MODEL_INVALID, "no such folder: /m"),
        (
            crash_status("--max-sequences: write 1 or more", code=64),
            Reason.SETTINGS_INVALID,
            "write 1 or more",
        ),
        (crash_status("Traceback …\nKeyError: 'x'"), Reason.CRASHING, "KeyError: 'x'"),
        (crash_status(""), Reason.CRASHING, "exit status 1"),
    ],
)
def test_a_cause_names_the_pod_and_says_why(status: dict[str, Any], reason: Reason, text: str) -> None:
    cause = read_pod(make_pod("chat-7", **status)).cause
    assert cause.reason is reason
    assert "chat-7" in cause.message
    assert text in cause.message


def test_a_kill_for_memory_has_the_pods_own_words_and_says_what_to_write() -> None:
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "message": "layer 16\nlayer 17\n"}}
    cause = read_pod(make_pod(containerStatuses=[{"name": "replica", "state": ended}])).cause
    assert cause == Cause(
        Reason.OUT_OF_MEMORY,
        "pod chat-1 was killed for using more memory than spec.resources.limits.memory (OOMKilled, exit "
        "status 137, first time); write a larger one. Its last line: layer 17",
    )


@pytest.mark.parametrize(
    ("waiting", "reason"),
    [
        ("ImagePullBackOff", Reason.IMAGE_UNAVAILABLE),
        ("CreateContainerConfigError", Reason.CONTAINER_REFUSED),
    ],
)
def test_what_keeps_a_container_from_starting(waiting: str, reason: Reason) -> None:
    state = {"waiting": {"reason": waiting, "message": "details"}}
    cause = read_pod(make_pod(containerStatuses=[{"name": "replica", "state": state}])).cause
    assert (cause.reason, "details" in cause.message) == (reason, True)


def test_restarts_beyond_the_first_do_not_change_the_message() -> None:
    messages = {read_pod(make_pod(**crash_status(restarts=n))).cause.message for n in (2, 3, 50)}
    assert len(messages) == 1


def test_a_terminating_or_ended_pod_is_on_its_way_out() -> None:
    raw = make_pod(**ready_status())
    raw["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert (read_pod(raw).is_terminating, read_pod(raw).is_staying) == (True, False)
    ended = read_pod(make_pod(phase="Failed"))
    assert (ended.has_ended, ended.is_terminating, ended.is_staying) == (True, False, False)


def ready_since(at: str, **container: int) -> dict[str, Any]:
    status = ready_status()
    status["conditions"][0]["lastTransitionTime"] = at
    status["containerStatuses"][0] |= container
    return status


def test_a_cold_start_is_from_creation_until_ready() -> None:
    assert read_pod(make_pod(**ready_since("2026-01-01T00:02:05Z"))).start_seconds == 125.0
    assert read_pod(make_pod(**ready_status())).start_seconds is None
    assert read_pod(make_pod(**ready_since("2026-01-01T00:02:05Z", restartCount=1))).start_seconds is None
    assert read_pod(make_pod(**crash_status())).start_seconds is None
