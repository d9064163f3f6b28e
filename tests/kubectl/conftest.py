"""A service behind a stand-in kubectl, and the plugin asked as a user does."""

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from millrace_kubectl import command
from millrace_operator.api.conditions import render_time

STAND_IN = Path(__file__).with_name("stand_in.py")


class Answer(NamedTuple):
    """What a user sees."""

    status: int
    out: str
    error: str


class Terminal:
    """A user's terminal: kubectl on PATH, one service in the cluster."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capture = capture

    def put(self, service: dict[str, Any]) -> None:
        (self.folder / "object.json").write_text(json.dumps(service))

    def put_record(self, record: str | None) -> None:
        """Let the operator have written this annotation; None: it may not be read."""
        (self.folder / "record.json").write_text(json.dumps(record))

    def put_decision(self, decision: dict[str, Any]) -> None:
        """Let an operator lead, and have decided this."""
        (self.folder / "decision.json").write_text(json.dumps(decision))

    def put_lease(self, renewed_at: float) -> None:
        """Let the operator that leads have renewed its Lease last then, in seconds since 1970."""
        (self.folder / "renewed").write_text(render_time(renewed_at))

    def write_meanwhile(self, number: int, change: dict[str, Any]) -> None:
        """Let somebody else write after the next call that has none yet."""
        (self.folder / f"meanwhile-{number}").write_text(json.dumps(change))

    def refuse(self, text: str) -> None:
        (self.folder / "refusal").write_text(text)

    @property
    def service(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "object.json").read_text())
        return found

    @property
    def pin(self) -> str | None:
        found: str | None = self.service["metadata"].get("annotations", {}).get("millrace.dev/pin")
        return found

    @property
    def calls(self) -> list[list[str]]:
        file = self.folder / "calls"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def run(self, *arguments: str) -> Answer:
        try:
            status = command.run(arguments)
        except SystemExit as end:
            status = int(end.code or 0)
        captured = self._capture.readouterr()
        return Answer(status, captured.out, captured.err)


def make_service(**scaling: Any) -> dict[str, Any]:
    decided = {"mode": "Automatic", "desiredReplicas": 5, "recommendedReplicas": 7, "reason": "Steady"}
    return {
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"namespace": "shop", "name": "chat", "resourceVersion": "41", "generation": 1},
        "spec": {
            "model": {"uri": "file:///models/stories"},
            "scaling": {"mode": "Automatic", "minReplicas": 2, "maxReplicas": 8, **scaling},
        },
        "status": {"scaling": decided},
    }


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    program = tmp_path / "bin" / "kubectl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{STAND_IN}" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.setenv("STAND_IN", str(tmp_path))
    found = Terminal(tmp_path, capsys)
    found.put(make_service())
    return found
