"""`pin`, `freeze` and `unpin` as a user runs them, with a stand-in kubectl on PATH."""

import json
import time
from typing import Any

import pytest

from millrace_kubectl import command
from millrace_operator.api.annotations import Pin, parse_pin
from tests.kubectl.conftest import Terminal, make_service

THREE = 1767322800.0  # 2026-01-02T03:00:00Z
EXTERNAL = make_service(mode="External")


@pytest.fixture(autouse=True)
def _at_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is 2026-01-02, 02:00:20 UTC."""
    monkeypatch.setattr(time, "time", lambda: THREE - 3580.5)


def read_patch(terminal: Terminal) -> dict[str, Any]:
    words = terminal.calls[1]
    found: dict[str, Any] = json.loads(words[words.index("-p") + 1])
    return found


def test_a_pin_says_what_holds_now(terminal: Terminal) -> None:
    answer = terminal.run("pin", "chat", "6", "--until", "2026-01-02T03:00:00Z")
    assert answer == (0, "chat is pinned at 6 replicas until 03:00 UTC, in 59m; the autoscaler wants 7\n", "")
    assert terminal.pin == "6 until 2026-01-02T03:00:00Z"


def test_without_a_time_it_holds_for_an_hour(terminal: Terminal) -> None:
    assert terminal.run("pin", "chat", "6").status == 0
    assert terminal.pin is not None
    assert parse_pin(terminal.pin) == Pin(6, THREE + 20)


def test_it_holds_over_midnight_and_for_seven_days_at_most(terminal: Terminal) -> None:
    answer = terminal.run("pin", "chat", "2", "--for", "168h")
    assert answer.out.startswith("chat is pinned at 2 replicas until 2026-01-09 02:00 UTC, in 7d")
    assert terminal.run("pin", "chat", "2", "--for", "168h1s").status == 2
    assert terminal.run("pin", "chat", "2", "--until", "2026-01-10T03:00:00Z").status == 2


def test_only_the_annotation_is_written(terminal: Terminal) -> None:
    terminal.run("pin", "chat", "6")
    assert read_patch(terminal) == {
        "metadata": {"annotations": {"millrace.dev/pin": "6 until 2026-01-02T03:00:20Z"}}
    }


@pytest.mark.parametrize(
    ("count", "message"),
    [
        ("1", "1 is less than minReplicas 2; write 2 to 8, or change spec.scaling first"),
        ("9", "9 is more than maxReplicas 8; write 2 to 8, or change spec.scaling first"),
        ("0", "0 is less than minReplicas 2; write 2 to 8, or change spec.scaling first"),
    ],
)
def test_a_count_out_of_bounds_is_refused(terminal: Terminal, count: str, message: str) -> None:
    assert terminal.run("pin", "chat", count) == (1, "", f"kubectl millrace: {message}\n")
    assert terminal.pin is None


@pytest.mark.parametrize("arguments", [("pin", "chat", "6"), ("freeze", "chat")])
def test_mode_external_is_refused_with_what_to_write(terminal: Terminal, arguments: tuple[str, ...]) -> None:
    terminal.put(EXTERNAL)
    status, out, error = terminal.run(*arguments)
    assert (status, out, error.count("\n")) == (1, "", 1)
    assert "kubectl scale infsvc chat --replicas=COUNT" in error
    assert terminal.pin is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("pin", "chat"), "COUNT"),
        (("pin", "chat", "many"), "no number of replicas; write for example 12"),
        (("pin", "chat", "-1"), "-1"),
        (("pin", "chat", "6", "--for", "soon"), "write for example 500ms, 2s, 10m or 1h30m"),
        (("pin", "chat", "6", "--for", "0s"), "not from 1s to 168h"),
        (("pin", "chat", "6", "--until", "03:00"), "write it as YYYY-MM-DDTHH:MM:SSZ"),
        (("pin", "chat", "6", "--until", "2026-01-02T03:00:00"), "no time with its zone"),
        (("pin", "chat", "6", "--until", "2026-01-02T01:00:00Z"), "that time is over"),
        (("pin", "chat", "6", "--for", "1h", "--until", "2026-01-02T03:00:00Z"), "not allowed with"),
        (("freeze", "chat", "--until", "2026-01-02T03:00:00Z"), "--until"),
        (("pni", "chat"), "invalid choice: 'pni'"),
        ((), "SUB-COMMAND"),
    ],
)
def test_bad_usage_is_an_error_before_the_cluster_is_asked(
    terminal: Terminal, arguments: tuple[str, ...], message: str
) -> None:
    answer = terminal.run(*arguments)
    assert answer.status == 2
    assert message in answer.error
    assert terminal.calls == []


def test_a_freeze_holds_the_count_that_there_is(terminal: Terminal) -> None:
    answer = terminal.run("freeze", "chat", "--for", "30m")
    assert answer.out.startswith("chat is pinned at 5 replicas until 02:30 UTC, in 30m")
    assert read_patch(terminal)["metadata"]["resourceVersion"] == "41"


def changed_to(count: int, version: int) -> dict[str, Any]:
    return {
        "metadata": {"resourceVersion": str(version)},
        "status": {"scaling": {"desiredReplicas": count}},
    }


def test_a_freeze_never_holds_a_count_that_has_changed_meanwhile(terminal: Terminal) -> None:
    terminal.write_meanwhile(1, changed_to(6, 50))
    assert terminal.run("freeze", "chat").status == 0
    assert terminal.pin == "6 until 2026-01-02T03:00:20Z"


def test_a_freeze_gives_up_on_a_service_that_changes_all_the_time(terminal: Terminal) -> None:
    for number in range(1, 10):
        terminal.write_meanwhile(number, changed_to(number % 2 + 3, 50 + number))
    answer = terminal.run("freeze", "chat")
    assert answer == (
        1,
        "",
        "kubectl millrace: chat changes all the time; write: kubectl millrace pin chat COUNT\n",
    )
    assert terminal.pin is None


def test_nothing_can_be_frozen_before_the_first_decision(terminal: Terminal) -> None:
    service = make_service()
    del service["status"]
    terminal.put(service)
    answer = terminal.run("freeze", "chat")
    assert answer.status == 1
    assert "no operator has decided one; write: kubectl millrace pin chat COUNT" in answer.error
    assert terminal.run("pin", "chat", "3").out.endswith("in 1h\n")


def test_an_unpin_removes_the_annotation_and_no_other(terminal: Terminal) -> None:
    terminal.run("pin", "chat", "6")
    service = terminal.service
    service["metadata"]["annotations"]["team"] = "search"
    terminal.put(service)
    answer = terminal.run("unpin", "chat")
    assert answer == (0, "chat is no longer pinned; the autoscaler goes on from 5 replicas\n", "")
    assert terminal.service["metadata"]["annotations"] == {"team": "search"}
    assert terminal.run("unpin", "chat") == (0, "chat was not pinned\n", "")


@pytest.mark.parametrize("before", [True, False])
def test_kubectls_own_flags_reach_it_from_either_side(terminal: Terminal, *, before: bool) -> None:
    flags = ("-n", "shop", "--context", "there", "--kubeconfig", "/etc/k")
    assert terminal.run(*(flags if before else ()), "unpin", "chat", *(() if before else flags)).status == 0
    assert terminal.calls[0][-3:] == ["--namespace=shop", "--context=there", "--kubeconfig=/etc/k"]


def test_without_flags_kubectl_chooses_the_namespace(terminal: Terminal) -> None:
    terminal.run("unpin", "chat")
    assert not [word for word in terminal.calls[0] if word.startswith(("--namespace", "--context"))]


@pytest.mark.parametrize(
    ("refusal", "message"),
    [
        ('error: the server doesn\'t have a resource type "inferenceservices"', "install Millrace"),
        (
            'Error from server (Forbidden): inferenceservices.millrace.dev "chat" is forbidden',
            'kubectl says: Error from server (Forbidden): inferenceservices.millrace.dev "chat" is forbidden',
        ),
        ('error: context "there" does not exist', 'kubectl says: error: context "there" does not exist'),
        ("", "kubectl says: Warning: a warning comes first"),
    ],
)
def test_what_kubectl_refuses_is_one_plain_line(terminal: Terminal, refusal: str, message: str) -> None:
    terminal.refuse(refusal)
    answer = terminal.run("pin", "chat", "6")
    assert (answer.status, answer.error.count("\n")) == (1, 1)
    assert message in answer.error


def test_a_service_that_is_not_there_is_named(terminal: Terminal) -> None:
    answer = terminal.run("pin", "chta", "6")
    assert answer.status == 1
    assert "there is no InferenceService chta in this namespace; kubectl get infsvc -A" in answer.error


def test_without_kubectl_it_says_what_to_do(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(terminal.folder))
    assert "there is no kubectl on PATH" in terminal.run("unpin", "chat").error


@pytest.mark.parametrize("name", command.SUB_COMMANDS)
def test_each_sub_command_explains_itself(terminal: Terminal, name: str) -> None:
    answer = terminal.run(name, "-h")
    assert answer.status == 0
    assert f"usage: kubectl millrace {name}" in answer.out
    assert name in terminal.run("--help").out


@pytest.mark.parametrize("arguments", [("pin", "chat", "6"), ("freeze", "chat")])
def test_no_pin_is_confirmed_while_nobody_can_read_the_spec(
    terminal: Terminal, arguments: tuple[str, ...]
) -> None:
    service = make_service(mode="Scheduled")
    words = "this version of the operator cannot read the spec: scaling.mode should be 'Automatic'"
    degraded = {"type": "Degraded", "status": "True", "reason": "SettingsInvalid", "message": words}
    service["status"]["conditions"] = [degraded]
    terminal.put(service)
    message = f"kubectl millrace: the operator obeys no pin of chat now: {words}. Correct that first\n"
    assert terminal.run(*arguments) == (1, "", message)


RESTING = {"minReplicas": 0, "maxReplicas": 4}


def test_no_pin_holds_zero_replicas(terminal: Terminal) -> None:
    terminal.put(make_service(**RESTING))
    message = (
        "0 is less than one replica, which a pin holds at least; write 1 to 4, or change spec.scaling first"
    )
    assert terminal.run("pin", "chat", "0") == (1, "", f"kubectl millrace: {message}\n")
    assert terminal.run("pin", "chat", "1").status == 0


def test_a_freeze_at_rest_starts_no_replica(terminal: Terminal) -> None:
    service = make_service(**RESTING)
    service["status"]["scaling"]["desiredReplicas"] = 0
    terminal.put(service)
    answer = terminal.run("freeze", "chat")
    assert (answer.status, answer.out) == (1, "")
    assert answer.error == (
        "kubectl millrace: chat is at zero, and a pin holds at least one replica; to start one and hold it "
        "write: kubectl millrace pin chat 1 -n shop\n"
    )
    assert terminal.pin is None
