"""The virtual environment that requirements.lock describes, made with the system's Python.

`python3 -m development.environment` imports the standard library and ours alone. The environment is stamped
by a hash of the lock file: a second run does nothing.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import e2e.cluster.minimum_python  # noqa: F401  before all that an older Python can't read
from e2e.cluster.disk import check_disks, list_needs
from e2e.cluster.errors import BuildFailedError, ClusterError, PrecheckFailedError
from e2e.cluster.processes import last_line
from e2e.cluster.progress import Say, progress
from e2e.cluster.settings import REPOSITORY, STAMP_NAME, VENV
from e2e.cluster.sources import cache_folder
from e2e.cluster.virtual_environment import LACKS_PIP, make_environment

STAMP = VENV / STAMP_NAME
ENTRY_MODULES = (
    "e2e.cluster.nodes.__main__",
    "millrace_cli.main",
    "millrace_gateway.command",
    "millrace_gateway.server",
    "millrace_operator.app.application",
    "millrace_operator.app.command",
    "millrace_runtime.api.workers.grammar_process",
    "millrace_runtime.api.workers.text_process",
    "millrace_runtime.execution.build",
    "millrace_runtime.replica.engine_process",
    "millrace_runtime.replica.http_process",
)


def main() -> int:
    """Make the environment unless it is there; return the exit status."""
    return run_command(lambda: install_environment(say))


def run_command(command: Callable[[], None]) -> int:
    """Run a command for people: 1 and one line where it fails, else 0."""
    try:
        command()
    except (ClusterError, OSError) as error:
        say(f"failed: {error}")
        return 1
    return 0


def say(line: str) -> None:
    """Print a line of progress at once."""
    print(line, flush=True)


def install_environment(say: Say) -> None:
    """Make the virtual environment as requirements.lock says, unless it is. Raises ClusterError."""
    fingerprint = lock_fingerprint()
    if STAMP.exists() and STAMP.read_text() == fingerprint:
        compile_sources()
        build_kernels(say)
        STAMP.touch()  # make compares its time with the lock file's
        return
    say("venv: downloads about 2.6 GB (torch with its CUDA libraries), takes 6.0 GB of disk in .venv")
    check_means()
    check_disks(list_needs(REPOSITORY / ".millrace", cache_folder(), VENV, os.environ, must_build=False))
    if not has_pip():
        make_environment(VENV, "venv")
    log = REPOSITORY / ".millrace" / "logs" / "venv.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)  # its lines are counted
    with progress("venv", "installing", log, say, "lines of pip's log"):
        run_pip(log, "--no-compile", "--no-deps", "-r", "requirements.lock")  # the lock has them all
        run_pip(log, "--no-deps", "-e", ".")
        compile_imports(log)
    build_kernels(say)
    STAMP.write_text(fingerprint)


def build_kernels(say: Say) -> None:
    """Compile the CPU kernels for this CPU, unless they are there: pods would do it at every start.

    Without a compiler replicas compute with torch, which is worth a line and no failure.
    """
    command = [str(VENV / "bin" / "python"), "-m", "millrace_kernels.native.build", "--here"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        say(f"kernels: not built, so that replicas compute with torch, slowly: {reason}")


def lock_fingerprint() -> str:
    """Hash what decides the environment: the locked versions, our own metadata, this Python."""
    digest = hashlib.sha256(sys.version.encode())
    for name in ("requirements.lock", "pyproject.toml"):
        digest.update((REPOSITORY / name).read_bytes())
    return digest.hexdigest()


def check_means() -> None:
    """Raise PrecheckFailedError where Python lacks what makes an environment with pip."""
    if find_spec("ensurepip") is None and not has_pip():
        raise PrecheckFailedError(LACKS_PIP)


def has_pip() -> bool:
    """Return whether the environment is there with a pip of this Python: one half made has none."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return (VENV / "lib" / version / "site-packages" / "pip" / "__main__.py").exists()


def run_pip(log: Path, *arguments: str) -> None:
    """Run `pip install` in the environment. Raises BuildFailedError naming the cause and the log."""
    run_python(log, "pip failed", "-m", "pip", "install", "--disable-pip-version-check", *arguments)


def compile_imports(log: Path) -> None:
    """Import what our processes import, so that its bytecode is there: pods can't write it.

    Without bytecode `import torch` takes 3.9 s instead of 2.2, in every replica. Of all that pip installs
    it would take pip 50 s of a core, and most of it is never imported.
    """
    modules = ", ".join(ENTRY_MODULES)
    run_python(log, "the environment does not work", "-c", f"import {modules}")


def compile_sources() -> None:
    """Compile what has changed in our own packages since: a pod would do it at every start, and lose it."""
    command = [str(VENV / "bin" / "python"), "-m", "compileall", "-q", "operator", "runtime", "kernels"]
    subprocess.run(command, cwd=REPOSITORY, check=False)  # a fault is reported where it is used


def run_python(log: Path, failure: str, *arguments: str) -> None:
    """Run the environment's Python. Raises BuildFailedError naming the cause and the log."""
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # container images set it
    with log.open("ab") as sink:
        done = subprocess.run(
            [VENV / "bin" / "python", *arguments],
            cwd=REPOSITORY,
            stdout=sink,
            stderr=sink,
            env=environment,
            check=False,
        )
    if done.returncode:
        raise BuildFailedError("venv", f"{failure}: {last_line(log)}", log)


if __name__ == "__main__":
    sys.exit(main())
