"""Codex and Claude Code, the programs themselves: each has a question that needs a tool of its own."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from replica import Replica

PROGRAMS = Path(__file__).parents[2] / ".venv-clients" / "agents" / "node_modules" / ".bin"
SECONDS = 120
NOWHERE = "http://127.0.0.1:9"
"""A proxy that does not answer: a program reaches this machine alone."""
CODEX = """\
model = "scripted"
model_provider = "millrace"
[model_providers.millrace]
name = "Millrace"
base_url = "{url}"
wire_api = "responses"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with one file."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "zebra.txt").touch()
    return folder


def run(project: Path, name: str, *words: str, **environment: str) -> str:
    """Return what a program says, started in the project."""
    program = PROGRAMS / name
    if not program.exists():
        pytest.skip(f"{name} is not installed: it needs npm")
    home = project.parent / "home"
    (home / ".codex").mkdir(parents=True, exist_ok=True)
    shown: Mapping[str, str] = {"PATH": os.environ["PATH"], "HOME": str(home), "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(
        [program, *words],
        cwd=project,
        env={**shown, "HTTP_PROXY": NOWHERE, "HTTPS_PROXY": NOWHERE, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("question", "answer"),
    [("Say hello", "Hello, wörld 😀!"), ("Which files are here?", "There is only a zebra.")],
)
def test_codex(long_replica: Replica, project: Path, question: str, answer: str) -> None:
    settings = project.parent / "home" / ".codex" / "config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(CODEX.format(url=long_replica.openai_url))
    flags = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    assert run(project, "codex", "exec", *flags, question).strip().endswith(answer)


@pytest.mark.parametrize(
    ("question", "answer"),
    [("Say hello", "Hello, wörld 😀!"), ("Show the files", "There is only a zebra.")],
)
def test_claude_code(long_replica: Replica, project: Path, question: str, answer: str) -> None:
    said = run(
        project,
        "claude",
        *("-p", "--allowedTools", "Bash(ls)", "--", question),
        ANTHROPIC_BASE_URL=long_replica.url,
        ANTHROPIC_AUTH_TOKEN="none",
        ANTHROPIC_MODEL="scripted",
        ANTHROPIC_DEFAULT_HAIKU_MODEL="scripted",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
    )
    assert said.strip().endswith(answer)
