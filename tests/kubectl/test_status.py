"""`status`: one screen, for each state that the operator leaves a service in."""

import re
import time
from pathlib import Path

import pytest

from millrace_kubectl import wording
from millrace_kubectl.facts import Facts
from millrace_kubectl.screen import WIDTH, render_screen
from millrace_kubectl.summary import summarise
from testing.world import BEGAN, World
from tests.kubectl.conftest import Terminal, make_service
from tests.kubectl.lives.counting import operator_is_gone
from tests.kubectl.lives.life import serve
from tests.kubectl.lives.rolling_out import rolled_back_again
from tests.kubectl.screens import EXPECTED, SHOWN, render

DOCS = Path(__file__).parents[2] / "docs" / "commands.md"


@pytest.fixture(scope="module")
def screens() -> dict[str, str]:
    return dict(part.split("\n", 1) for part in render().removeprefix("## ").split("\n\n## "))


def test_it_says_what_it_said(screens: dict[str, str]) -> None:
    text = "\n\n".join(f"## {name}\n{screen}" for name, screen in screens.items())
    assert text == EXPECTED.read_text(), "if that is wanted: python -m tests.kubectl.screens"


def test_without_a_name_each_service_is_a_line(terminal: Terminal) -> None:
    terminal.put(make_service())
    titles, *lines = terminal.run("status").out.splitlines()
    assert titles.split("  ")[0] == "NAME"
    assert {line.split()[0] for line in lines} == {"chat", "chess", "draft"}
    assert "draft  NOT SEEN by an operator yet" in "\n".join(lines)
    assert terminal.run("status", "-A").out.startswith("NAMESPACE  NAME")
    listed = [call for call in terminal.calls if call[1].startswith("inferenceservices")]
    assert [call[-1] for call in listed] == ["--request-timeout=15s"] * 2
    assert "--all-namespaces" in listed[1]


def test_each_is_a_screen(screens: dict[str, str]) -> None:
    assert len(screens) == len(SHOWN)
    for screen in screens.values():
        lines = screen.splitlines()
        assert len(lines) <= 24
        assert max(map(len, lines)) <= WIDTH


def test_the_documented_one_is_one_of_them(screens: dict[str, str]) -> None:
    example = DOCS.read_text().split("$ kubectl millrace status chat\n")[1].split("\n```")[0]
    assert example in {screen.rstrip() for screen in screens.values()}


@pytest.mark.parametrize("name", [one.__name__ for one in SHOWN])
def test_what_is_in_the_way_comes_with_what_to_do(screens: dict[str, str], name: str) -> None:
    parts = {line[:10].strip(): line[12:] for line in screens[name].splitlines()}
    assert (parts["IN THE WAY"] == "nothing") is (parts["DO"] == "nothing")


@pytest.mark.parametrize("name", [one.__name__ for one in SHOWN])
def test_a_command_is_a_line_to_be_copied_and_is_for_the_services_namespace(
    screens: dict[str, str], name: str
) -> None:
    lines = screens[name].split("\n\n")[0].splitlines()
    rest = [line[12:] for line in lines[[line[:2] for line in lines].index("DO") :]]
    commands = [line for line in rest if line.startswith("kubectl ")]
    assert all(line.endswith(" -n shop") or line == "kubectl get lease -A" for line in commands)
    assert not any(": kubectl " in line for line in rest)


@pytest.mark.parametrize("name", [one.__name__ for one in SHOWN])
def test_no_command_is_there_twice(screens: dict[str, str], name: str) -> None:
    remedies = screens[name].split("\nDO ")[1]
    commands = re.findall(r"kubectl (?!get lease).* -n shop$", remedies, re.MULTILINE)
    assert len(commands) == len(set(commands))


def test_a_user_sees_the_screen(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: BEGAN)
    terminal.put(make_service())
    answer = terminal.run("status", "chat", "-n", "shop")
    assert answer.status == 0
    assert answer.out.startswith("chat        STARTING: ? of 5 replicas answer\n")
    assert "chosen by the autoscaler between 2 and 8 (Steady)" in answer.out
    assert [call[1:4] for call in terminal.calls] == [
        ["inferenceservices.v1alpha1.millrace.dev", "chat", "--show-managed-fields"],
        [
            "leases.v1.coordination.k8s.io",
            "--field-selector=metadata.name=millrace-operator",
            "--all-namespaces",
        ],
    ]


def test_figures_of_an_operator_that_is_gone_are_shown_as_old(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: BEGAN + 300)
    terminal.put_lease(BEGAN)
    out = terminal.run("status", "chat").out
    assert "  no operator leads since 00:00 UTC, 5m ago: all this was so then" in out
    assert "DO          see that an operator leads" in out
    assert "OLD, was" in terminal.run("status").out
    terminal.put_lease(BEGAN + 298)
    assert "no operator leads" not in terminal.run("status", "chat").out


def test_a_service_that_is_not_there_is_a_plain_line(terminal: Terminal) -> None:
    answer = terminal.run("status", "chess")
    assert answer.status == 1
    assert "there is no InferenceService chess" in answer.error


def reported(world: World, **changes: dict[str, str]) -> Facts:
    """Return the service with other values in its conditions."""
    conditions = [{**one, **changes.get(one["type"], {})} for one in world.status["conditions"]]
    return Facts({**world.service, "status": {**world.status, "conditions": conditions}}, world.now)


NEWER = {"reason": "WornOut", "message": "the weights need 140 GiB, and a replica has 80 GiB"}


async def test_a_reason_of_a_newer_operator_is_shown_with_its_words() -> None:
    world = await serve(1)
    facts = reported(world, Degraded={"status": "True", **NEWER}, Ready={"status": "False", **NEWER})
    lines = render_screen(facts)
    assert any(line.endswith(f": {NEWER['message']}") for line in lines)
    assert f"DO          {wording.OBEY}" in lines
    assert summarise(facts).lines[-1] == f"DO {wording.OBEY}"
    facts = reported(world, Ready={"status": "False", **NEWER})
    assert f"DO          {wording.OBEY}" in render_screen(facts)


async def test_a_status_that_nobody_has_written_for_days_is_shown_as_old() -> None:
    world = await operator_is_gone()
    lines = render_screen(Facts(world.service, world.now))
    assert lines[0].startswith("chat        OLD, was READY: ")
    assert "IN THE WAY  no operator has written its figures for 3d: all this was so then" in lines


async def test_how_long_a_condition_has_been_so_is_not_shown_as_the_age_of_its_reason() -> None:
    world = await rolled_back_again()
    screen = "\n".join(render_screen(Facts(world.service, world.now)))
    assert "given up 0s ago" in screen
    assert "Degraded for 31m, now RolledBack: " in screen
