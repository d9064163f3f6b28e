"""A service behind a stand-in kubectl, and the plugin asked as a user does."""

import sys
from pathlib import Path

import pytest

from tests.kubectl.terminal import Answer, Terminal, make_service

__all__ = ["Answer", "Terminal", "make_service"]
STAND_IN = Path(__file__).with_name("stand_in.py")


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
