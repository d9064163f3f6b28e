"""Tries a library in a process of its own, so that a crash or a hang there ends no replica.

The trial takes as long as torch's import, so it runs once for each file and kind of CPU. A library that
passes gets a mark in the private cache. `python -m millrace_kernels.native.trial LIBRARY` is that process.
"""

import hashlib
import resource
import signal
import subprocess
import sys
from pathlib import Path

from millrace_kernels.native.abi import Library
from millrace_kernels.native.cache import digest_of, find_default_cache, note_use, open_cache
from millrace_kernels.native.errors import BuildError, NativeError, PoolError
from millrace_kernels.native.instruction_sets import read_cpu_flags
from millrace_kernels.native.selfcheck import check_library

TRIAL_SECONDS = 120
"""A trial takes a few seconds, mostly for torch's import; on a tenth of a CPU ten times as long."""
EXIT_FAILED, EXIT_NO_POOL = 1, 2


def try_once(library: Path) -> None:
    """Try a library, unless it has passed on such a CPU before. Raises NativeError."""
    mark = _mark(library)
    if mark is None or not mark.exists():
        _try(library)
    if mark is not None:
        note_use(mark)


def _mark(library: Path) -> Path | None:
    """Return the mark of a passed library; None if no mark can be written: then every start tries it."""
    try:
        folder = open_cache(find_default_cache())
        what = f"{digest_of(library)} {sorted(read_cpu_flags())}"
    except (BuildError, OSError):
        return None
    return folder / f"{hashlib.sha256(what.encode()).hexdigest()[:16]}.passed"


def _try(library: Path) -> None:
    command = [sys.executable, "-P", "-m", "millrace_kernels.native.trial", str(library)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TRIAL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NativeError(f"{library} took longer than {TRIAL_SECONDS} s for a small case") from error
    except OSError as error:
        raise NativeError(f"{library} can't be tried: {error}") from error
    if done.returncode < 0:
        raise NativeError(f"{library} ended a small case by {signal.Signals(-done.returncode).name}")
    if done.returncode == EXIT_NO_POOL:
        raise PoolError(done.stderr.strip()[-2000:])
    if done.returncode > 0:
        raise NativeError((done.stderr.strip() or f"{library} failed a small case")[-2000:])


def main(argv: list[str]) -> int:
    """Try the library that the argument names."""
    signal.alarm(TRIAL_SECONDS)  # the starting process may have died
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        check_library(Library(Path(argv[0])))
    except NativeError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_NO_POOL if isinstance(error, PoolError) else EXIT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
