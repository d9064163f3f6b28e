import subprocess
import sys
from pathlib import Path

import pytest

from millrace_cli import main as cli

MILLRACE = Path(sys.executable).with_name("millrace")


def millrace(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([MILLRACE, *arguments], capture_output=True, text=True, check=False)


def test_help_names_every_sub_command() -> None:
    done = millrace("--help")
    assert done.returncode == 0
    assert all(name in done.stdout and sub.summary in done.stdout for name, sub in cli.SUB_COMMANDS.items())


def test_an_unknown_sub_command_names_those_there_are() -> None:
    done = millrace("srve")
    assert done.returncode == 1
    known = "serve, operator, gateway, fetch, node-cache, size"
    assert done.stderr == f"millrace: no sub-command 'srve'; it is one of: {known}\n"


@pytest.mark.parametrize("name", cli.SUB_COMMANDS)
def test_each_sub_command_explains_itself(name: str) -> None:
    done = millrace(name, "--help")
    assert done.returncode == 0, done.stderr
    assert f"usage: millrace {name}" in done.stdout


def test_the_command_itself_loads_nothing_of_a_replica() -> None:
    code = "import sys, millrace_cli.main; print('millrace_runtime.replica' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.usefixtures("thawed")
def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(module: str) -> None:
        raise ModuleNotFoundError(f"No module named 'kopf' for {module}", name="kopf")

    monkeypatch.setattr(cli.importlib, "import_module", absent)
    with pytest.raises(SystemExit, match=r"kopf is not installed; write: pip install 'millrace\[operator\]'"):
        cli.run(cli.SUB_COMMANDS["operator"], [])
