"""Whole lives of a container, each as a transcript: what happens, and what status shows after it."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from e2e.cluster.nodes.container_record import ContainerRecord, Running, Terminated, Waiting, begin_record
from e2e.cluster.nodes.container_status import render_container, render_init_container

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
PROBES = {"startupProbe": {}, "readinessProbe": {}}
Step = Callable[[ContainerRecord], ContainerRecord]


def begin(restarts: int = 0, **fields: Any) -> ContainerRecord:
    return begin_record({"name": "main", "image": "shell:1", **fields}, restarts)


def start(seconds: float = 0) -> Step:
    return lambda record: record.start("u1", NOW + timedelta(seconds=seconds))


def end(code: int, seconds: float = 0) -> Step:
    return lambda record: record.end(code, "", NOW + timedelta(seconds=seconds))


def wait(reason: str) -> Step:
    return lambda record: record.wait(Waiting(reason))


def describe(record: ContainerRecord) -> str:
    """Return the state, how the run before ended, the restarts, and what the container is."""
    state = record.state
    shown = state.reason if isinstance(state, Waiting | Terminated) else "Running"
    flags = [name for name, is_so in (("started", record.is_started), ("ready", record.is_ready)) if is_so]
    before = f"after {record.last.exit_code}" if record.last else "-"
    return " ".join([shown, before, f"#{record.restart_count}", *flags])


def replay(record: ContainerRecord, steps: list[Step]) -> list[str]:
    shown = []
    for step in steps:
        record = step(record)
        shown.append(describe(record))
    return shown


def test_a_crash_loop() -> None:
    steps = [start(), end(1), start(), end(2), wait("CrashLoopBackOff"), start(), end(0)]
    assert replay(begin(), steps) == [
        "Running - #0 started ready",
        "Error - #0",
        "Running after 1 #1 started ready",
        "Error after 1 #1",
        "CrashLoopBackOff after 2 #1",
        "Running after 2 #2 started ready",
        "Completed after 2 #2",
    ]


def test_a_start_that_is_refused_counts_as_no_restart() -> None:
    steps = [wait("PodInitializing"), wait("ErrImagePull"), wait("ImagePullBackOff"), start()]
    assert replay(begin(), steps) == [
        "PodInitializing - #0",
        "ErrImagePull - #0",
        "ImagePullBackOff - #0",
        "Running - #0 started ready",
    ]


def test_a_start_that_is_refused_after_a_run_remembers_that_run() -> None:
    steps = [start(), end(3), wait("CreateContainerConfigError"), wait("CrashLoopBackOff"), start()]
    assert replay(begin(), steps)[2:] == [
        "CreateContainerConfigError after 3 #0",
        "CrashLoopBackOff after 3 #0",
        "Running after 3 #1 started ready",
    ]


def test_probes_decide_what_is_started_and_ready() -> None:
    steps: list[Step] = [
        start(),
        ContainerRecord.pass_startup,
        lambda record: record.answer_readiness(is_ready=True),
        lambda record: record.answer_readiness(is_ready=False),
        end(0),
        start(),
    ]
    assert replay(begin(**PROBES), steps) == [
        "Running - #0",
        "Running - #0 started",
        "Running - #0 started ready",
        "Running - #0 started",
        "Completed - #0",
        "Running after 0 #1",
    ]


def test_a_startup_probe_alone_makes_ready() -> None:
    steps: list[Step] = [start(), ContainerRecord.pass_startup]
    assert replay(begin(startupProbe={}), steps) == ["Running - #0", "Running - #0 started ready"]


def test_a_node_that_begins_again_goes_on_counting() -> None:
    record = begin(restarts=3)
    assert (record.restart_count, record.next_run) == (3, 3)
    record = record.start("u1", NOW)
    assert (record.restart_count, record.next_run, record.container_id) == (3, 4, "process://u1-main-3")


def test_an_end_says_how_long_it_ran() -> None:
    ended = begin().start("u1", NOW).end(1, "no model", NOW + timedelta(seconds=90)).state
    assert isinstance(ended, Terminated)
    assert (ended.ran_seconds, ended.message, ended.container_id) == (90, "no model", "process://u1-main-0")


@pytest.mark.parametrize(
    "steps", [[end(0)], [start(), start()], [start(), wait("x")], [start(), end(0), end(0)]]
)
def test_what_can_not_happen_is_a_bug(steps: list[Step]) -> None:
    with pytest.raises(AssertionError):
        replay(begin(), steps)


def test_a_status_shows_the_run_and_the_one_before() -> None:
    record = begin().start("u1", NOW).end(1, "no model", NOW).start("u1", NOW)
    status = render_container(record)
    assert status["state"] == {"running": {"startedAt": "2026-01-02T03:04:05Z"}}
    assert status["lastState"]["terminated"]["message"] == "no model"
    assert (status["ready"], status["restartCount"]) == (True, 1)
    assert isinstance(record.state, Running)


def test_an_init_container_is_ready_once_it_has_ended_well() -> None:
    running = begin().start("u1", NOW)
    ended = [running, running.end(1, "", NOW), running.end(0, "", NOW)]
    assert [render_init_container(record)["ready"] for record in ended] == [False, False, True]
