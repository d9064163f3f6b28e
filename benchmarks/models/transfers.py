"""`millrace fetch` beside curl: the same files of the same server, in turn.

Fetch hashes what it brings, and curl does not. As pods run it for a folder of their own it does not wait for
the disk, and nor does curl. For a folder that is kept it does. The time is that of the whole process.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from benchmarks.models.hub_server import COMMIT, REPOSITORY
from benchmarks.models.shards import StoredModel, find_wrong
from benchmarks.runtime.errors import BenchmarkError
from benchmarks.runtime.progress import report

_LOOK_SECONDS = 0.01
_SPARE = 1.2
"""How much faster than the limit the server must be, so that the limit alone holds it back."""


class Turn(NamedTuple):
    """One process that fetched the model."""

    bytes_per_second: float
    peak_mb: float
    """The most memory that it held, in 10⁶ bytes."""


@dataclass(frozen=True)
class Contestant:
    """A command that fetches the model into a folder."""

    name: str
    words: Sequence[str]
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, model: StoredModel) -> Turn:
        """Fetch, with nothing of an earlier turn still to be written. Raises BenchmarkError."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        os.sync()
        began = time.monotonic()
        with self._start() as process:
            peak_mb = _watch_memory(process)
            seconds = time.monotonic() - began
            assert process.stderr
            said = process.stderr.read().decode()
        if process.returncode != 0:
            raise BenchmarkError(f"{self.name} ended with {process.returncode}: {said[-500:]}")
        return Turn(model.num_bytes / seconds, peak_mb)

    def _start(self) -> subprocess.Popen[bytes]:
        environment = os.environ | self.environment
        silence, kept = subprocess.DEVNULL, subprocess.PIPE
        return subprocess.Popen(self.words, env=environment, stdout=silence, stderr=kept)


@dataclass(frozen=True)
class Rounds:
    """What each did, round by round."""

    fetch: Sequence[Turn]
    curl: Sequence[Turn]
    synced: Sequence[Turn]
    """Fetch that waits for the disk."""
    unlimited_bytes_per_second: float
    """What curl gets of the server without a limit, and throws away."""


@contextmanager
def serving(model: StoredModel, bytes_per_second: float | None) -> Iterator[str]:
    """Run the server, and give its address."""
    model.folder.with_suffix(".json").write_text(json.dumps(model.sha256))
    limit = [] if bytes_per_second is None else ["--bytes-per-second", str(bytes_per_second)]
    words = [sys.executable, "-m", "benchmarks.models.hub_server", str(model.folder), *limit]
    command = [*words, "--parent", str(os.getpid())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def make_fetch(address: str, folder: Path, *, is_synced: bool) -> Contestant:
    """Ours, as a user runs it, or a pod for a folder of its own."""
    command = [str(Path(sys.executable).with_name("millrace")), "fetch", f"hf://{REPOSITORY}"]
    command += ["--to", str(folder), *([] if is_synced else ["--no-sync"])]
    environment = {"HF_ENDPOINT": address, "HF_HOME": str(folder.parent / "hub"), "NO_PROXY": "127.0.0.1"}
    return Contestant("millrace fetch", command, folder, environment)


def make_curl(address: str, folder: Path, model: StoredModel, *, is_kept: bool = True) -> Contestant:
    """One curl for all files, one after another over one connection."""
    urls = [f"{address}/{REPOSITORY}/resolve/{COMMIT}/{name}" for name in model.sha256]
    places = [["--output", str(folder / name) if is_kept else "/dev/null"] for name in model.sha256]
    asked = [word for url, place in zip(urls, places, strict=True) for word in (*place, url)]
    return Contestant(
        "curl", ["curl", "--silent", "--show-error", "--fail", "--noproxy", "*", *asked], folder
    )


def measure(model: StoredModel, folder: Path, bytes_per_second: float, num_rounds: int) -> Rounds:
    """Let each fetch in turn; each round begins with another one. Raises BenchmarkError."""
    unlimited = measure_server(model, folder)
    report(f"the server sends {unlimited / 1e6:.0f} MB/s without a limit")
    if unlimited < _SPARE * bytes_per_second:
        raise BenchmarkError(f"that is not {_SPARE} times the limit: lower --megabytes-per-second")
    turns: tuple[list[Turn], list[Turn], list[Turn]] = ([], [], [])
    with serving(model, bytes_per_second) as address:
        all_of_them = (
            make_fetch(address, folder / "fetch", is_synced=False),
            make_curl(address, folder / "curl", model),
            make_fetch(address, folder / "synced", is_synced=True),
        )
        for number in range(num_rounds):
            for place in sorted(range(3), key=lambda place: (place - number) % 3):
                turns[place].append(all_of_them[place].run(model))
                _check(model, all_of_them[place])
            rates = ", ".join(f"{each[-1].bytes_per_second / 1e6:.0f}" for each in turns)
            held = turns[0][-1].peak_mb
            report(f"round {number + 1}: fetch, curl, fetch to the disk: {rates} MB/s; it held {held:.0f} MB")
    return Rounds(*turns, unlimited)


def measure_server(model: StoredModel, folder: Path) -> float:
    """Return the bytes a second that curl gets of the server without a limit."""
    with serving(model, None) as address:
        return make_curl(address, folder / "curl", model, is_kept=False).run(model).bytes_per_second


def _check(model: StoredModel, contestant: Contestant) -> None:
    """No speed of files that are not the model's. Raises BenchmarkError."""
    if wrong := find_wrong(model, contestant.folder):
        raise BenchmarkError(f"{contestant.name} brought other files than the server has: {wrong}")
    shutil.rmtree(contestant.folder)


def _watch_memory(process: subprocess.Popen[bytes]) -> float:
    """Wait for the end, and return the peak. By its own file: rusage counts what its parent held, too."""
    peak_kib = 0
    while process.poll() is None:
        peak_kib = max(peak_kib, _read_peak_kib(process.pid))
        time.sleep(_LOOK_SECONDS)
    return peak_kib * 1024 / 1e6


def _read_peak_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    # None once it has ended.
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)
