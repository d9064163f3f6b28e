"""A former commit of ours, measured beside the present one.

It runs from its own files and its own native library, in the same Python with the same packages of others.
"""

import dataclasses
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.runtime.engines import EngineSpec
from benchmarks.runtime.errors import EngineError, UsageError
from benchmarks.runtime.figures import FORMER
from benchmarks.runtime.progress import report

ROOT = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = ("", "kernels", "operator", "runtime")
"""Folders of packages: the first has the benchmark's drivers."""
BUILD = ("-m", "millrace_kernels.native.build", "--here")
BUILD_SECONDS = 900


class Former(NamedTuple):
    """The files of a former commit."""

    commit: str
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which Python and all its children import from the folder, and not from here."""
        paths = [str(self.folder / name) for name in SOURCE_ROOTS]
        return {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}

    def replace(self, spec: EngineSpec) -> EngineSpec:
        """Return how to start the same engine of this commit."""
        return dataclasses.replace(spec, name=FORMER, environment={**spec.environment, **self.environment})


def read_former_commit(name: str) -> str:
    """Return a commit's short hash. Raises UsageError."""
    command = ["git", "rev-parse", "--verify", "--quiet", "--short", "--end-of-options", f"{name}^{{commit}}"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if said.returncode:
        raise UsageError(f"--against: no commit {name}; name one that `git log` shows")
    return said.stdout.strip()


def prepare_former(commit: str, folder: Path) -> Former:
    """Write a commit's files into `folder` and compile its native library. Raises EngineError."""
    report(f"writing and compiling commit {commit}")
    former = write_former(commit, folder)
    _run_build(former)
    return former


def write_former(commit: str, folder: Path) -> Former:
    """Write a commit's files into `folder`.

    An archive and not a worktree of git: git has nothing to forget when the folder goes.
    """
    with subprocess.Popen(
        ["git", "archive", "--format=tar", commit], cwd=ROOT, stdout=subprocess.PIPE
    ) as archive:
        assert archive.stdout is not None
        with tarfile.open(fileobj=archive.stdout, mode="r|") as files:
            files.extractall(folder, filter="data")
    return Former(commit, folder)


def _run_build(former: Former) -> None:
    command, environment = [sys.executable, *BUILD], {**os.environ, **former.environment}
    try:
        done = subprocess.run(
            command,
            cwd=former.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"the library of {former.commit} was not compiled in {BUILD_SECONDS} s") from error
    if done.returncode:
        raise EngineError(f"the library of {former.commit} can't be compiled: {done.stderr.strip()[-300:]}")
