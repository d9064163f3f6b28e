"""Starts a replica's processes as forks of one that has loaded their libraries: `import torch` takes 2 s.

A fork finds what an executed process finds: its arguments and parent, in /proc too; environment; descriptors.
"""

import asyncio
import ctypes
import functools
import gc
import importlib
import json
import os
import platform
import runpy
import signal
import socket
import subprocess
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, Self

REPLICA = (
    "millrace_runtime.execution.parallel.worker_process",
    "millrace_runtime.replica.engine_process",
    "millrace_runtime.replica.http_process",
)
"""What `python -m` runs, but for the text worker's process: that limits its memory."""
TEXT = (
    "millrace_runtime.api.workers.grammar_process",
    "millrace_runtime.api.workers.text_process",
    "millrace_runtime.chat.text_process",
)
SCRIPT = "millrace"
LIBRARIES = ("millrace_runtime.execution.build", "millrace_runtime.replica.command")
ONE_THREAD = {
    "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0",
}  # fmt: skip
"""Threads are lost in a fork. These are read when libraries are loaded; forks set the number of theirs."""

_REPOSITORY = Path(__file__).parents[2]
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE_PARENT = 0x8000
_ARGUMENT_BYTES = 8192
"""Room for a fork's command line."""
_MAX_FDS = 100
_execute = subprocess._fork_exec  # type: ignore[attr-defined]  # what Popen calls


class Forkserver:
    """The process with the libraries of some modules. It ends with its client."""

    def __init__(self, modules: tuple[str, ...], libraries: tuple[str, ...] = ()) -> None:
        self._modules = modules
        self._socket, theirs = socket.socketpair()
        orders = [str(theirs.fileno()), ",".join(modules), ",".join(libraries), "-" * _ARGUMENT_BYTES]
        command = [sys.executable, "-m", "tests.runtime.forkserver", *orders]
        with theirs:
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], cwd=_REPOSITORY, env=os.environ | ONE_THREAD
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.wait(30)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Have `subprocess.Popen` use it, for a replica's processes alone."""
        subprocess._fork_exec = self._fork_exec  # type: ignore[attr-defined]
        try:
            yield
        finally:
            subprocess._fork_exec = _execute  # type: ignore[attr-defined]

    async def spawn(
        self, *words: str, stdin: int, pass_fds: list[int], env: dict[str, str]
    ) -> "ForkedProcess":
        """Do as `asyncio.create_subprocess_exec` does, on every loop."""
        assert stdin == subprocess.DEVNULL
        with Path(os.devnull).open() as nothing:  # noqa: ASYNC230
            fds = {0: nothing.fileno(), 1: 1, 2: 2} | {fd: fd for fd in pass_fds}
            return ForkedProcess(self.fork(list(words), env, fds))

    def _fork_exec(self, *options: Any) -> int:
        if not is_ours(options[0], self._modules):
            return int(_execute(*options))
        return self.fork(*read_options(*options))

    def fork(self, words: list[str], environment: dict[str, str], fds: dict[int, int]) -> int:
        """Return the id of a child of this process. `fds` are the descriptors here by their numbers there."""
        order = json.dumps([words, environment, list(fds)]).encode()
        socket.send_fds(self._socket, [len(order).to_bytes(4, "big")], list(fds.values()))
        self._socket.sendall(order)
        answer = self._socket.recv(4, socket.MSG_WAITALL)
        if not answer:
            raise ChildProcessError("the server of forks has ended")
        return int.from_bytes(answer, "big")


class ForkedProcess:
    """A child as asyncio shows it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._fd = os.pidfd_open(pid)
        self._loop.add_reader(self._fd, self._reap)

    def kill(self) -> None:
        """Raise ProcessLookupError once it has been reaped."""
        if self._ended.done():
            raise ProcessLookupError
        os.kill(self.pid, signal.SIGKILL)

    async def wait(self) -> int:
        """Return its exit status."""
        return await asyncio.shield(self._ended)

    def _reap(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._ended.set_result(os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]))


def is_ours(words: Sequence[str | Path], modules: tuple[str, ...]) -> bool:
    """Whether a command is a module of these, or the product's script."""
    return words[2] in modules if words[1:2] == ["-m"] else Path(words[0]).name == SCRIPT


def read_options(  # noqa: PLR0917  they are subprocess's
    words: list[str | Path],
    _executables: Any,
    _close_fds: bool,  # noqa: FBT001
    kept_fds: tuple[int, ...],
    _cwd: Any,
    environment: list[bytes] | None,
    stdin: int,
    _stdin_writer: int,
    _stdout_reader: int,
    stdout: int,
    _stderr_reader: int,
    stderr: int,
    _failure_reader: int,
    failure_writer: int,
    *_others: Any,
) -> tuple[list[str], dict[str, str], dict[int, int]]:
    """Return a command, its environment, and its descriptors here by their numbers there."""
    lines = [f"{name}={value}" for name, value in os.environ.items()]
    if environment is not None:
        lines = [os.fsdecode(line) for line in environment]
    fds = {fd: fd for fd in kept_fds if fd != failure_writer}
    for number, fd in enumerate((stdin, stdout, stderr)):
        fds[number] = number if fd == -1 else fd
    return [os.fspath(word) for word in words], dict(line.split("=", 1) for line in lines), fds


def fork_here(modules: tuple[str, ...], *options: Any) -> int:
    """Do as subprocess's own does, by a fork of this process."""
    if not is_ours(options[0], modules):
        return int(_execute(*options))
    words, environment, fds = read_options(*options)
    pid = os.fork()
    if pid == 0:
        become(words, environment, fds)
    return pid


def become(words: list[str], environment: dict[str, str], fds: dict[int, int]) -> NoReturn:
    """Run a command in this process, a fork. `fds` are the descriptors here by their numbers there."""
    status = 1
    try:
        reset_signals()
        place_descriptors(fds)
        os.environ.clear()
        os.environ.update(environment)
        gc.freeze()  # no finalizer of the parent's may close what a descriptor's number means here
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(int(environment.get("OMP_NUM_THREADS", "1")))
        status = run(words)
    except BaseException:  # noqa: BLE001  as the interpreter does
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def run(words: list[str]) -> int:
    """Run a Python script, or a module, and return its exit status."""
    try:
        if words[1:2] == ["-m"]:
            show_words(words)
            sys.argv = words[2:]
            runpy.run_module(words[2], run_name="__main__", alter_sys=True)
        else:
            show_words([sys.executable, *words])
            sys.argv = words
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(end.code + "\n")
            return 1
        return end.code or 0
    return 0


def reset_signals() -> None:
    """Forget the parent's handlers."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def place_descriptors(fds: dict[int, int]) -> None:
    """Give descriptors their numbers, and close all others."""
    above = max([*fds, *fds.values()]) + 1
    for number, fd in fds.items():
        os.dup2(fd, above + number)
    for number in fds:
        os.dup2(above + number, number)
    for entry in list(Path("/proc/self/fd").iterdir()):
        if int(entry.name) not in fds:
            with suppress(OSError):  # that of the listing
                os.close(int(entry.name))


def show_words(words: list[str]) -> None:
    """Write the command line where /proc reads it."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    text = b"".join(os.fsencode(word) + b"\0" for word in words)
    assert len(text) < end - begin
    ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


def fork_for_parent() -> int:
    """Fork a child of this process's parent: it waits for it, and that ends with it."""
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    pid = int(python.syscall(_CLONE[platform.machine()], _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))
    (python.PyOS_AfterFork_Parent if pid else python.PyOS_AfterFork_Child)()
    return pid


def load(modules: tuple[str, ...], libraries: tuple[str, ...]) -> None:
    """Load what the processes load. The modules themselves are run later, and so are not kept."""
    for name in (*modules, *libraries):
        importlib.import_module(name)
    for name in modules:
        del sys.modules[name]
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a fork would lose threads"


def serve(sock: socket.socket) -> None:
    """Fork for the client, until it closes the socket."""
    while True:
        head, fds, _, _ = socket.recv_fds(sock, 4, _MAX_FDS)
        if not head:
            return
        words, environment, numbers = json.loads(sock.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL))
        pid = fork_for_parent()
        if pid == 0:
            become(words, environment, dict(zip(numbers, fds, strict=True)))
        for fd in fds:
            os.close(fd)
        sock.sendall(pid.to_bytes(4, "big"))


def main(fd: str, modules: str, libraries: str, _room: str) -> None:
    """Run as the client's child."""
    names = tuple(modules.split(","))
    # The supervisor forks beside a thread, which does nothing but poll.
    warnings.filterwarnings("ignore", ".*multi-threaded", DeprecationWarning)
    load(names, tuple(filter(None, libraries.split(","))))
    subprocess._fork_exec = functools.partial(fork_here, names)  # type: ignore[attr-defined]
    serve(socket.socket(fileno=int(fd)))


if __name__ == "__main__":
    main(*sys.argv[1:])
