"""Runs the fast tests on other Pythons than the environment's: `python -m development.pythons [VERSION …]`.

Each Python gets an environment of its own with the locked versions, below .cache. They are made one at a
time and removed afterwards, as each takes 6 GB. A Python that this machine lacks is named, with what to
install.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

VERSIONS = ("3.12", "3.13", "3.14")
ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = ROOT / ".cache" / "pythons"
_PRINT_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"


def find_python(version: str) -> Path | None:
    """Return an interpreter of this version, from PATH or from pyenv, or None."""
    return next((path for path in _candidates(version) if _is_of_version(path, version)), None)


def _candidates(version: str) -> Iterator[Path]:
    for folder in os.get_exec_path():
        yield Path(folder) / f"python{version}"
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/python"), reverse=True)


def _is_of_version(python: Path, version: str) -> bool:
    """Ask the interpreter itself: a shim of pyenv is on PATH without the Python behind it."""
    try:
        done = subprocess.run([python, "-c", _PRINT_VERSION], capture_output=True, text=True, check=False)
    except OSError:
        return False
    return done.stdout.strip() == version


def run_fast_tests(version: str, python: Path) -> bool:
    """Make an environment, run the fast tests in it, remove it; return whether all of that went well."""
    folder = ENVIRONMENTS / version
    own = str(folder / "bin" / "python")
    install = (own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    steps: tuple[tuple[str, ...], ...] = (
        (str(python), "-m", "venv", "--clear", str(folder)),
        (*install, "-r", "requirements.lock"),
        (*install, "--no-deps", "-e", "."),
        (own, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", "tests"),
    )
    try:
        return all(_run(step) for step in steps)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(command: tuple[str, ...]) -> bool:
    say(f"pythons: {' '.join(command)}")
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def say(line: str) -> None:
    """Print a line at once, between those of the processes that we start."""
    print(line, flush=True)


def judge(version: str) -> bool | None:
    """Return whether the fast tests pass on this Python, or None where there is no such Python; say which."""
    python = find_python(version)
    if python is None:
        say(f"pythons: no Python {version} on PATH or in pyenv; write: pyenv install {version}")
        return None
    started = time.monotonic()
    has_passed = run_fast_tests(version, python)
    say(f"pythons: {version} {'passed' if has_passed else 'FAILED'} in {time.monotonic() - started:.0f} s")
    return has_passed


def main(argv: list[str]) -> int:
    """Return 0 when at least one Python could be had and every one of those passed."""
    parser = argparse.ArgumentParser(prog="python -m development.pythons", description=__doc__)
    parser.add_argument("versions", nargs="*", default=VERSIONS, metavar="VERSION")
    results = [judge(version) for version in parser.parse_args(argv).versions]
    return 0 if True in results and False not in results else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
