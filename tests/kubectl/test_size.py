"""`kubectl millrace size`: the screen of `millrace size`, with the plugin's exit statuses and no cluster."""

import builtins
import json
from pathlib import Path
from typing import Any

import pytest

from millrace_fetch.cli.size import main
from testing.checkpoints.models import MEDIUM, write_model
from tests.kubectl.conftest import Terminal


@pytest.fixture
def folder(tmp_path: Path) -> str:
    model = tmp_path / "model"
    model.mkdir()
    return str(write_model(model, MEDIUM))


@pytest.mark.parametrize("flags", [[], ["--accelerator", "l4"], ["--memory", "100MiB"], ["--json"]])
def test_it_shows_what_millrace_size_shows(
    flags: list[str], folder: str, terminal: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main([folder, *flags])
    shown = capsys.readouterr().out
    answer = terminal.run("size", folder, *flags)
    assert (answer.status, answer.out) == (status, shown)
    assert terminal.calls == []


def test_what_does_not_fit_is_shown_and_is_an_error(folder: str, terminal: Terminal) -> None:
    answer = terminal.run("size", folder, "--memory", "100MiB")
    assert (answer.status, answer.error) == (
        1,
        "kubectl millrace: no replica would start with these settings\n",
    )
    assert "Does not fit: " in answer.out


def test_refusals_are_the_plugins(folder: str, tmp_path: Path, terminal: Terminal) -> None:
    assert terminal.run("size", folder, "--accelerator", "cpu").status == 2
    (Path(folder) / "config.json").write_text(json.dumps([]))
    answer = terminal.run("size", folder)
    assert (answer.status, answer.error) == (1, "kubectl millrace: config.json is no JSON object\n")
    assert terminal.run("size", str(tmp_path / "absent")).status == 2


def test_without_the_extra_it_says_what_to_install(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = builtins.__import__

    def refuse(name: str, *others: Any, **more: Any) -> Any:
        if name == "millrace_fetch.fetch":
            raise ModuleNotFoundError("No module named 'aiohttp'", name="aiohttp")
        return load(name, *others, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    answer = terminal.run("size", "hf://org/m")
    assert answer.status == 2
    assert (
        answer.error == "kubectl millrace: aiohttp is not installed; write: pip install 'millrace[fetch]'\n"
    )
