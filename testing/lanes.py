"""`python -m testing.lanes LANE … [-- FLAGS]`: run tests as `make test` does, each lane by its own rules.

Unit tests run side by side, a file on one worker. So do end-to-end tests, with a cluster for each worker.
An end-to-end test that measures latencies is marked `alone`: it runs in one process, after the others.
"""

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.memory import available_memory

ROOT = Path(__file__).resolve().parents[1]
WORKER_BYTES = 3 << 30
"""Of a worker of end-to-end tests: its cluster, and the replicas that it starts."""
NO_TESTS = 5
"""pytest's status where no test was chosen."""


@dataclass(frozen=True)
class Lane:
    """`marks` choose the tests of the folder. With 0 workers for each core they run in one process.

    Workers end where one ends no test for `hang_seconds` (testing/hangs.py).
    """

    folder: str
    marks: str
    workers_per_core: float
    hang_seconds: int = 600

    @property
    def num_workers(self) -> int:
        """Worker processes on this machine, as far as its memory lets them run."""
        most = max(1, available_memory() // WORKER_BYTES)
        return min(int(self.workers_per_core * len(os.sched_getaffinity(0))), most)


LANES = {
    "units": Lane("tests", "not long", 1.5),
    "e2e": Lane("e2e", "not long and not alone", 1),
    "e2e-alone": Lane("e2e", "not long and alone", 0),
    "units-long": Lane("tests", "long or reads", 1.5, hang_seconds=1800),
    "e2e-long": Lane("e2e", "(long or reads) and not alone", 1, hang_seconds=1800),
    "e2e-alone-long": Lane("e2e", "long and alone", 0),
}
"""In their order. Unit tests wait for a fifth of their time, so three workers keep two cores busy. End-to-end
tests took 18 minutes with two and with three workers: replicas that start have no processor left."""


def run_lane(name: str, tests: Iterable[str] = (), flags: Sequence[str] = ()) -> int:
    """Run the tests of a lane, all of its folder unless some are named; return pytest's status."""
    lane = LANES[name]
    chosen = list(tests) or [lane.folder]
    if lane.marks.endswith("and alone"):
        # To collect all tests takes half a minute, and few are marked.
        chosen = [file for file in list_files(chosen) if "mark.alone" in (ROOT / file).read_text()]
    if not chosen:
        return 0
    # Two processes that each start a thread for each core take turns instead of computing.
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    command = render_command(lane, name, [*flags, *chosen])
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
    return 0 if done.returncode == NO_TESTS else done.returncode


def render_command(lane: Lane, name: str, words: Sequence[str]) -> list[str]:
    """Return the command that runs a lane. Not by xdist's groups: pytest 9 hides them from xdist 3.8."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", lane.marks, "--lane", name]
    if lane.num_workers:
        command += ["-n", str(lane.num_workers), "--dist", "loadfile", "--no-loadscope-reorder"]
        # Another worker would run the file of a crashed one again, and crash at the same test.
        command += ["--hang-seconds", str(lane.hang_seconds), "--max-worker-restart", "0"]
    return [*command, *words]


def list_files(places: Iterable[str]) -> list[str]:
    """Return the test files among these files and tests, and below these folders."""
    paths = [ROOT / place.partition("::")[0] for place in places]
    found = {file for path in paths for file in (path.rglob("test_*.py") if path.is_dir() else [path])}
    return sorted(file.relative_to(ROOT).as_posix() for file in found)


def main(argv: list[str]) -> int:
    """Run lanes until one fails; return its status."""
    split = argv.index("--") if "--" in argv else len(argv)
    names, flags = argv[:split], argv[split + 1 :]
    unknown = [name for name in names if name not in LANES]
    if unknown or not names:
        print(f"no lane {', '.join(unknown)}: name some of {', '.join(LANES)}", file=sys.stderr)
        return 2
    return next((status for name in names if (status := run_lane(name, flags=flags))), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
