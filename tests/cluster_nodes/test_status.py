from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from e2e.cluster.nodes.admission import check_pod
from e2e.cluster.nodes.backoff import Backoff, should_restart
from e2e.cluster.nodes.errors import PodRefusedError
from e2e.cluster.nodes.probes import ProbeCounter, resolve_port
from e2e.cluster.nodes.settings import Timing
from e2e.cluster.nodes.status import (
    ContainerRecord,
    PodFacts,
    Running,
    Terminated,
    Waiting,
    decide_phase,
    observed_restarts,
    render_status,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
POD: dict[str, Any] = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main"}]}}
FACTS = PodFacts("127.16.0.1", "127.0.0.2", NOW, is_initialized=True)


def ended(code: int) -> Terminated:
    return Terminated(code, "Error" if code else "Completed", "", NOW, NOW, "process://x")


def record(state: Any, last: Any = None, **more: Any) -> ContainerRecord:
    return ContainerRecord("main", "shell", state=state, last=last, **more)


@pytest.mark.parametrize(
    ("policy", "states", "phase"),
    [
        ("Always", [Waiting()], "Pending"),
        ("Always", [Running(NOW)], "Running"),
        ("Always", [Running(NOW), Waiting()], "Pending"),
        ("Always", [ended(1)], "Running"),
        ("Never", [ended(0)], "Succeeded"),
        ("Never", [ended(0), ended(1)], "Failed"),
        ("OnFailure", [ended(1)], "Running"),
        ("OnFailure", [ended(0)], "Succeeded"),
    ],
)
def test_phases(policy: str, states: list[Any], phase: str) -> None:
    assert decide_phase(policy, [], [record(state) for state in states], FACTS) == phase


def test_a_crash_loop_is_running() -> None:
    assert (
        decide_phase("Always", [], [record(Waiting("CrashLoopBackOff"), last=ended(1))], FACTS) == "Running"
    )


def test_conditions_keep_their_times_while_they_do_not_change() -> None:
    first = render_status(POD, [], [record(Running(NOW), is_ready=True, is_started=True)], FACTS, NOW)
    later = NOW + timedelta(minutes=5)
    pod = {**POD, "status": first}
    again = render_status(pod, [], [record(Running(NOW), is_ready=True, is_started=True)], FACTS, later)
    assert again == first
    unready = render_status(pod, [], [record(Running(NOW), is_started=True)], FACTS, later)
    conditions = {each["type"]: each for each in unready["conditions"]}
    assert conditions["Ready"]["status"] == "False"
    assert conditions["Ready"]["lastTransitionTime"] == "2026-01-02T03:09:05Z"
    assert conditions["Ready"]["message"] == "containers with unready status: [main]"
    assert conditions["PodScheduled"]["lastTransitionTime"] == "2026-01-02T03:04:05Z"


def test_a_readiness_gate_holds_ready_but_not_containers_ready() -> None:
    pod = {**POD, "spec": {**POD["spec"], "readinessGates": [{"conditionType": "x/y"}]}}
    status = render_status(pod, [], [record(Running(NOW), is_ready=True)], FACTS, NOW)
    found = {each["type"]: each["status"] for each in status["conditions"]}
    assert (found["ContainersReady"], found["Ready"]) == ("True", "False")


def test_restarts_go_on_counting_after_the_node_did() -> None:
    seen = {
        "status": {"containerStatuses": [{"name": "main", "restartCount": 2, "containerID": "process://x"}]}
    }
    assert observed_restarts(seen, "main") == 3
    assert observed_restarts({}, "main") == 0


def test_back_off_doubles_and_forgets() -> None:
    backoff = Backoff(Timing())
    assert [backoff.after_run(1) for _ in range(8)] == [0, 10, 20, 40, 80, 160, 300, 300]
    assert [backoff.after_run(601), backoff.after_run(1)] == [0, 10]


def test_restart_policies() -> None:
    assert should_restart("Always", 0, is_init=False)
    assert not should_restart("OnFailure", 0, is_init=False)
    assert should_restart("OnFailure", 1, is_init=False)
    assert not should_restart("Never", 1, is_init=False)
    assert should_restart("Always", 1, is_init=True)
    assert not should_restart("Always", 0, is_init=True)


def test_probe_thresholds_count_answers_in_a_row() -> None:
    counter = ProbeCounter(success_threshold=2, failure_threshold=3)
    answers = [True, False, True, True, False, False, True, False, False, False]
    assert [counter.observe(answer) for answer in answers] == [
        None, None, None, True, None, None, None, None, None, False,
    ]  # fmt: skip


def test_probe_ports_by_name() -> None:
    container = {"ports": [{"name": "http", "containerPort": 8000}]}
    assert [resolve_port(port, container) for port in (81, "82", "http")] == [81, 82, 8000]
    with pytest.raises(PodRefusedError, match="'live'"):
        resolve_port("live", container)


def test_every_unsupported_field_is_named() -> None:
    container = {
        "name": "c",
        "tty": True,
        "readinessProbe": {"grpc": {"port": 1}},
        "lifecycle": {"postStart": {}},
    }
    container["securityContext"] = {"privileged": True, "capabilities": {"add": ["NET_ADMIN"]}}
    with pytest.raises(PodRefusedError) as caught:
        check_pod({"spec": {"hostPID": True, "containers": [container]}})
    for field in ("hostPID", "c].tty", "readinessProbe.grpc", "postStart", "privileged", "capabilities.add"):
        assert field in str(caught.value)
    check_pod({"spec": {"containers": [{"name": "c", "readinessProbe": {"httpGet": {"port": 80}}}]}})
