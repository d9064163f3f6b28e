"""Scripted replicas for all clients. They run in the repository's environment, and clients in theirs."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from replica import Replica

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("script.json")
OFFLINE = {
    "DO_NOT_TRACK": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_OFFLINE": "1",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "NO_PROXY": "127.0.0.1",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "TRANSFORMERS_OFFLINE": "1",
}
KEYS = {"OPENAI_API_KEY": "none", "ANTHROPIC_API_KEY": "none"}


def refuse_other_hosts(event: str, arguments: tuple[Any, ...]) -> None:
    """Let no client reach anything but this machine."""
    if event == "socket.connect" and isinstance(address := arguments[1], tuple):
        assert address[0] in ("127.0.0.1", "::1"), f"a client connects to {address}"


def pytest_configure() -> None:
    os.environ.update(OFFLINE | KEYS)
    sys.addaudithook(refuse_other_hosts)


@contextmanager
def serve(script: Path, folder: Path, *flags: str) -> Iterator[Replica]:
    """Run a replica that says what the script says."""
    command = [ROOT / ".venv" / "bin" / "python", "-m", "testing.scripted_replica", script, folder, *flags]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield Replica(process.stdout.readline().strip(), folder)
        process.stdin.close()
        assert process.wait(30) == 0, "the replica failed"


@pytest.fixture(scope="session")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    with serve(SCRIPT, tmp_path_factory.mktemp("model")) as found:
        yield found


@pytest.fixture(scope="module")
def long_replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    """One for the prompts of coding agents: a byte is a token here, and their own rules are 100 KB."""
    with serve(SCRIPT, tmp_path_factory.mktemp("model"), "400000") as found:
        yield found
