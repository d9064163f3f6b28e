from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from e2e.cluster.nodes.admission import check_pod
from e2e.cluster.nodes.backoff import Backoff, should_restart
from e2e.cluster.nodes.container_record import ContainerRecord, Running, Terminated, Waiting
from e2e.cluster.nodes.container_status import observed_restarts
from e2e.cluster.nodes.errors import PodRefusedError
from e2e.cluster.nodes.prober import resolve_port
from e2e.cluster.nodes.settings import Timing
from e2e.cluster.nodes.status import Failure, PodFacts, decide_phase, render_status

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
POD: dict[str, Any] = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main"}]}}


def facts(*main: ContainerRecord, **more: Any) -> PodFacts:
    return PodFacts("127.16.0.1", "127.0.0.2", NOW, **{"is_initialized": True, "main": main, **more})


def ended(code: int) -> Terminated:
    return Terminated(code, "", NOW, NOW, "process://x")


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
    assert decide_phase(policy, facts(*map(record, states))) == phase


def test_a_crash_loop_is_running() -> None:
    crashed = record(Waiting("CrashLoopBackOff"), last=ended(1))
    assert decide_phase("Always", facts(crashed)) == "Running"


@pytest.mark.parametrize(
    ("policy", "init", "more", "phase"),
    [
        ("Always", Running(NOW), {}, "Pending"),
        ("Always", ended(1), {}, "Pending"),
        ("Always", ended(1), {"is_ending": True}, "Failed"),
        ("Never", ended(1), {}, "Failed"),
    ],
)
def test_a_pod_that_is_not_initialized_is_pending_unless_that_has_failed(
    policy: str, init: Any, more: dict[str, Any], phase: str
) -> None:
    known = facts(record(Waiting()), init=[record(init)], is_initialized=False, **more)
    assert decide_phase(policy, known) == phase


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (1, "Failed")])
def test_a_pod_that_is_ending_starts_nothing_again(code: int, phase: str) -> None:
    assert decide_phase("Always", facts(record(ended(code)), is_ending=True)) == phase


def test_a_refused_pod_says_why() -> None:
    status = render_status(POD, facts(record(Waiting()), failure=Failure("Odd", "no such thing")), NOW)
    assert (status["phase"], status["reason"], status["message"]) == ("Failed", "Odd", "no such thing")
    assert {each["type"]: each["reason"] for each in status["conditions"]}["Ready"] == "PodFailed"


def test_conditions_keep_their_times_while_they_do_not_change() -> None:
    ready = facts(record(Running(NOW), is_ready=True, is_started=True))
    first = render_status(POD, ready, NOW)
    later = NOW + timedelta(minutes=5)
    pod = {**POD, "status": first}
    assert render_status(pod, ready, later) == first
    unready = render_status(pod, facts(record(Running(NOW), is_started=True)), later)
    conditions = {each["type"]: each for each in unready["conditions"]}
    assert conditions["Ready"]["status"] == "False"
    assert conditions["Ready"]["lastTransitionTime"] == "2026-01-02T03:09:05Z"
    assert conditions["Ready"]["message"] == "containers with unready status: [main]"
    assert conditions["PodScheduled"]["lastTransitionTime"] == "2026-01-02T03:04:05Z"


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


def test_a_refused_start_waits_from_the_first_and_doubles() -> None:
    backoff = Backoff(Timing())
    assert [backoff.after_refusal() for _ in range(7)] == [10, 20, 40, 80, 160, 300, 300]


def test_restart_policies() -> None:
    assert should_restart("Always", 0, is_init=False)
    assert not should_restart("OnFailure", 0, is_init=False)
    assert should_restart("OnFailure", 1, is_init=False)
    assert not should_restart("Never", 1, is_init=False)
    assert should_restart("Always", 1, is_init=True)
    assert not should_restart("Always", 0, is_init=True)


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
        "lifecycle": {"postStart": {}, "preStop": {"sleep": {"seconds": 1}}},
        "volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": "a"}],
    }
    container["securityContext"] = {"privileged": True, "capabilities": {"add": ["NET_ADMIN"]}}
    with pytest.raises(PodRefusedError) as caught:
        check_pod({"spec": {"hostPID": True, "hostAliases": [{}], "containers": [container]}})
    for field in (
        *("hostPID", "hostAliases", "c].tty", "/v: subPath", "readinessProbe.grpc", "postStart"),
        *("preStop.sleep", "privileged", "capabilities.add"),
    ):
        assert field in str(caught.value)
    check_pod({"spec": {"containers": [{"name": "c", "readinessProbe": {"httpGet": {"port": 80}}}]}})
