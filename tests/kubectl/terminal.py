"""A user's terminal: the plugin asked as a user does, beside a stand-in kubectl."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from millrace_kubectl import command
from millrace_operator.api.conditions import render_time


class Answer(NamedTuple):
    """The exit status and the texts that a user sees."""

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
    def secrets(self) -> dict[str, Any]:
        """The cluster's Secrets by name."""
        file = self.folder / "secrets.json"
        found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        return found

    def put_secret(self, name: str, data: dict[str, str], labels: dict[str, str]) -> None:
        metadata = {"name": name, "labels": labels, "resourceVersion": "7"}
        found = {**self.secrets, name: {"kind": "Secret", "metadata": metadata, "data": data}}
        (self.folder / "secrets.json").write_text(json.dumps(found))

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
