"""`status`: one screen, for each state that the operator leaves a service in."""

import time

import pytest

from millrace_kubectl.screen import WIDTH
from tests.kubectl.conftest import Terminal, make_service
from tests.kubectl.screens import EXPECTED, LIVES, render
from tests.operator.world import BEGAN


@pytest.fixture(scope="module")
def screens() -> dict[str, str]:
    return dict(part.split("\n", 1) for part in render().removeprefix("## ").split("\n\n## "))


def test_it_says_what_it_said(screens: dict[str, str]) -> None:
    text = "\n\n".join(f"## {name}\n{screen}" for name, screen in screens.items())
    assert text == EXPECTED.read_text(), "if that is wanted: python -m tests.kubectl.screens"


def test_each_is_a_screen(screens: dict[str, str]) -> None:
    assert len(screens) == len(LIVES)
    for screen in screens.values():
        lines = screen.splitlines()
        assert len(lines) <= 24
        assert max(map(len, lines)) <= WIDTH


@pytest.mark.parametrize("name", [one.__name__ for one in LIVES])
def test_what_is_in_the_way_comes_with_what_to_do(screens: dict[str, str], name: str) -> None:
    parts = {line[:10].strip(): line[12:] for line in screens[name].splitlines()}
    assert (parts["IN THE WAY"] == "nothing") is (parts["DO"] == "nothing")


def test_a_user_sees_the_screen(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: BEGAN)
    terminal.put(make_service())
    answer = terminal.run("status", "chat", "-n", "shop")
    assert answer.status == 0
    assert answer.out.startswith("chat        STARTING: ? of 5 replicas answer\n")
    assert "chosen by the autoscaler between 2 and 8 (Steady)" in answer.out
    assert [call[1:4] for call in terminal.calls] == [
        ["inferenceservices.v1alpha1.millrace.dev", "chat", "--show-managed-fields"]
    ]


def test_a_service_that_is_not_there_is_a_plain_line(terminal: Terminal) -> None:
    answer = terminal.run("status", "chess")
    assert answer.status == 1
    assert "there is no InferenceService chess" in answer.error
