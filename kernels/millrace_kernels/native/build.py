"""Finds the native library for an instruction set, or compiles it.

A library's name contains a hash of its sources and flags, so that a library of other sources is never loaded,
and a hash of its bytes. The search begins beside this file (for a wheel), then goes to the private cache,
where a library is compiled on first use. `python -m millrace_kernels.native.build` compiles all libraries
ahead of time, beside this file.
"""

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from millrace_kernels.native.cache import (
    drop_old,
    find_default_cache,
    find_intact,
    note_use,
    open_cache,
    place,
)
from millrace_kernels.native.errors import BuildError
from millrace_kernels.native.instruction_sets import (
    InstructionSet,
    list_buildable_sets,
    list_usable_sets,
    read_cpu_flags,
)

PACKAGE = Path(__file__).resolve().parent.parent
PACKAGED = PACKAGE / "native" / "lib"
COMPILERS = ("c++", "g++", "clang++")
FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fno-exceptions",
    "-fno-rtti",
    "-fvisibility=hidden",
    # No implicit fma: a product and a sum are rounded twice, or two tile shapes would have different bits.
    "-ffp-contract=off",
    "-Wall",
    "-Wextra",
    # GCC's own AVX-512 header has intentionally uninitialised variables.
    "-Wno-maybe-uninitialized",
    "-Wno-uninitialized",
)
BUILD_SECONDS = 600


def find_library(instruction_set: InstructionSet, cache: Path | None = None) -> Path:
    """Return the library's file, and compile it if there is none. Raises BuildError."""
    try:
        packaged = find_intact(PACKAGED, name_library(instruction_set))
        return packaged or _find_cached(instruction_set, open_cache(cache or find_default_cache()))
    except OSError as error:
        raise BuildError(f"the search for the native library failed: {error}") from error


def is_installed(library: Path) -> bool:
    """Whether a library is part of the package."""
    return library.parent == PACKAGED


def name_library(instruction_set: InstructionSet) -> str:
    """Return the start of the library's file name, for the present sources; a hash of its bytes follows."""
    flags = [platform.machine(), *FLAGS, *instruction_set.compiler_flags]
    digest = hashlib.sha256(" ".join(flags).encode())
    for file in sorted([*sources(), *PACKAGE.glob("*/*.h")]):
        digest.update(f"\0{file.relative_to(PACKAGE)}\0".encode() + file.read_bytes())
    return f"millrace-{instruction_set.value}-{digest.hexdigest()[:16]}"


def _find_cached(instruction_set: InstructionSet, folder: Path) -> Path:
    """Return a library of this machine's compiler; if that fails, one of the same sources by any compiler."""
    stem, toolchain = name_library(instruction_set), read_toolchain()
    found = find_intact(folder, f"{stem}-{toolchain}")
    try:
        found = found or _make_cached(instruction_set, folder, f"{stem}-{toolchain}")
    except BuildError:
        found = find_intact(folder, f"{stem}-*")
        if found is None:
            raise
    note_use(found)
    return found


def _make_cached(instruction_set: InstructionSet, folder: Path, stem: str) -> Path:
    with _compiled(instruction_set, folder) as made:
        target = place(made, folder, stem)
    drop_old(folder, f"millrace-{instruction_set.value}", except_for=target)
    return target


def read_toolchain() -> str | None:
    """Return a hash of the C library's and the compiler's version; None without a compiler."""
    try:
        version = _run([find_compiler(), "--version"])
    except BuildError:
        return None
    return hashlib.sha256(f"{platform.libc_ver()} {version}".encode()).hexdigest()[:8]


def sources() -> list[Path]:
    """Return every C++ file of the library."""
    return sorted([*PACKAGE.glob("*/cpu*.cpp"), *PACKAGE.glob("native/*.cpp")])


def build_library(instruction_set: InstructionSet, folder: Path, extra_flags: Iterable[str] = ()) -> Path:
    """Compile into `folder`. Several processes may do so at the same time."""
    with _compiled(instruction_set, folder, extra_flags) as made:
        return place(made, folder, name_library(instruction_set))


@contextmanager
def _compiled(
    instruction_set: InstructionSet, folder: Path, extra_flags: Iterable[str] = ()
) -> Iterator[Path]:
    """Yield a library compiled in a temporary folder inside `folder`. Raises BuildError."""
    compiler = find_compiler()
    try:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            yield _compile(compiler, instruction_set, Path(scratch), tuple(extra_flags))
    except OSError as error:
        raise BuildError(f"the native library can't be written to {folder}: {error}") from error


def find_compiler() -> str:
    """Return a C++ compiler: $CXX, else one from PATH. Raises BuildError."""
    names = (os.environ["CXX"],) if os.environ.get("CXX") else COMPILERS
    for name in names:
        if (path := shutil.which(name)) is not None:
            return path
    raise BuildError(f"there is no C++ compiler ({', '.join(names)}): install g++")


def _compile(
    compiler: str, instruction_set: InstructionSet, folder: Path, extra_flags: tuple[str, ...]
) -> Path:
    flags = [*FLAGS, *instruction_set.compiler_flags, f"-DMILLRACE_ISA={instruction_set.value}", *extra_flags]
    jobs = [(source, folder / f"{source.parent.name}-{source.stem}.o") for source in sources()]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(lambda job: _run([compiler, *flags, "-c", str(job[0]), "-o", str(job[1])]), jobs))
    made = folder / "library.so"
    objects = [str(output) for _, output in jobs]
    _run([compiler, "-shared", *extra_flags, *objects, "-o", str(made), "-lpthread"])
    return made


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"the C++ compiler failed: {error}") from error
    if done.returncode != 0:
        raise BuildError(f"the C++ compiler failed: {(done.stderr.strip() or 'without a message')[:2000]}")
    return done.stdout


def build_ahead(folder: Path, instruction_sets: Iterable[InstructionSet]) -> list[str]:
    """Build the libraries that `folder` lacks, and remove damaged ones and those of other sources.

    Returns the failures: an old compiler does not know the newest instruction sets.
    """
    folder.mkdir(parents=True, exist_ok=True)
    current = [find_intact(folder, name_library(one)) for one in InstructionSet]
    for library in folder.glob("millrace-*.so"):
        if library not in current:
            library.unlink()
    failures = []
    for instruction_set in instruction_sets:
        if find_intact(folder, name_library(instruction_set)) is not None:
            continue
        try:
            build_library(instruction_set, folder)
        except BuildError as error:
            failures.append(f"{instruction_set.value}: {error}")
    return failures


def build_here(folder: Path) -> list[str]:
    """Build the fastest library of this CPU that the compiler can; return the failures if there is none."""
    failures: list[str] = []
    for instruction_set in list_usable_sets(read_cpu_flags()):
        failed = build_ahead(folder, [instruction_set])
        if not failed:
            return []
        failures += failed
    return failures


def main(argv: list[str]) -> int:
    """Build libraries ahead of time."""
    parser = argparse.ArgumentParser(prog="python -m millrace_kernels.native.build", description=main.__doc__)
    parser.add_argument("--to", type=Path, default=PACKAGED, help="folder (default: beside the sources)")
    parser.add_argument("--here", action="store_true", help="only the fastest for this CPU (default: all)")
    values = parser.parse_args(argv)
    failures = build_here(values.to) if values.here else build_ahead(values.to, list_buildable_sets())
    sys.stderr.writelines(f"{failure}\n" for failure in failures)
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
