"""Starts a container's sandbox and programs inside a running one; says what a forbidding kernel needs.

Knows nothing of Kubernetes: a SandboxSpec is argv, environment, identity and mounts.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from e2e.cluster.nodes.errors import SandboxError
from e2e.cluster.prechecks import allow_namespaces

INIT_SCRIPT = Path(__file__).with_name("sandbox_init.py")


@dataclass(frozen=True)
class Mount:
    """One place in a container: a host path bound there, or, of the kind "cover", nothing to be seen."""

    target: str
    source: str = ""
    kind: str = "bind"
    readonly: bool = False
    optional: bool = False
    """Only where nothing stands at `target` already."""


@dataclass(frozen=True)
class SandboxSpec:
    """The options of sandbox_init.py."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    staging: Path
    """An existing empty folder on the host; the root is built on it."""
    mounts: tuple[Mount, ...] = ()
    cwd: str = "/"
    hostname: str = "pod"
    uid: int = 0
    gid: int = 0
    readonly_root: bool = False

    def as_json(self) -> bytes:
        """The form that sandbox_init.py reads."""
        mounts = [asdict(mount) for mount in self.mounts]
        return json.dumps({**vars(self), "mounts": mounts, "staging": os.fspath(self.staging)}).encode()


class Sandbox:
    """A started sandbox: its first process, its output, its end."""

    def __init__(self, process: asyncio.subprocess.Process, pid: int) -> None:
        self._process = process
        self.pid = pid
        """The first process's id on the host; it is process 1 inside."""

    @property
    def is_running(self) -> bool:
        """Until the end has been seen."""
        return self._process.returncode is None

    @property
    def output(self) -> asyncio.StreamReader:
        """What the container writes to stdout and stderr."""
        assert self._process.stdout is not None
        return self._process.stdout

    async def wait(self) -> int:
        """The exit status, 128 + N for signal N."""
        return await self._process.wait()

    def send(self, number: signal.Signals) -> None:
        """Signal the first process. As process 1 it only gets what it handles, SIGKILL and SIGSTOP apart."""
        if self.is_running:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return


async def start_sandbox(spec: SandboxSpec) -> Sandbox:
    """Start `spec`; SandboxError says what the kernel, a mount or the program's path refused."""
    with _open_in_memory(spec.as_json()) as spec_fd:
        report_read, report_write = os.pipe()
        try:
            process = await _start_init(spec_fd, report_write)
        except BaseException:
            os.close(report_read)
            raise
        finally:
            os.close(report_write)
    try:
        return Sandbox(process, await _read_report(report_read))
    except BaseException:
        await _finish(process)
        raise


@contextlib.contextmanager
def _open_in_memory(content: bytes) -> Iterator[int]:
    """Yield a file without a name that holds this, open at its beginning."""
    fd = os.memfd_create("sandbox")
    try:
        os.write(fd, content)
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


async def _start_init(spec_fd: int, report_fd: int) -> asyncio.subprocess.Process:
    arguments = (sys.executable, "-I", "-S", str(INIT_SCRIPT), str(spec_fd), str(report_fd), str(os.getpid()))
    return await asyncio.create_subprocess_exec(
        *arguments,
        pass_fds=(spec_fd, report_fd),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={},
        start_new_session=True,
    )


async def _finish(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.communicate()


async def _read_report(fd: int) -> int:
    """The first process's id, once its program runs."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", buffering=0)
    )
    try:
        reports = [json.loads(line) for line in (await reader.read()).splitlines()]
    finally:
        transport.close()
    pids = [report["pid"] for report in reports if "pid" in report]
    for report in reports:
        if "error" in report:
            raise SandboxError(explain_refusal(report["stage"], report["error"]))
    if not pids:
        raise SandboxError("the sandbox ended before its program ran")
    return int(pids[0])


def explain_refusal(stage: str, error: str) -> str:
    """One line: what was refused, and the setting that refuses it where we know it."""
    if stage == "exec":
        return f"cannot run {error}"
    if stage == "unshare":
        return f"cannot make user namespaces here ({error}); {allow_namespaces(Path('/proc'))}"
    return f"cannot build the container's root: {error}"


async def check_sandbox() -> None:
    """Start `true` in a sandbox; SandboxError is the one line a user needs where that fails."""
    with TemporaryDirectory(prefix="millrace-node-") as staging:
        spec = SandboxSpec(("true",), {"PATH": "/usr/bin:/bin"}, Path(staging))
        sandbox = await start_sandbox(spec)
        await sandbox.output.read()
        if code := await sandbox.wait():
            raise SandboxError(f"a trial sandbox ended with status {code}")


@dataclass(frozen=True)
class CommandResult:
    """How a program inside a sandbox ended."""

    exit_code: int
    output: str


async def run_inside(
    pid: int, argv: list[str], env: Mapping[str, str], timeout_seconds: float
) -> CommandResult:
    """Run a program in the namespaces of `pid`; TimeoutError when it takes longer. Ends with its caller."""
    process = await asyncio.create_subprocess_exec(
        *("nsenter", "--target", str(pid), "--user", "--mount", "--pid", "--uts", "--preserve-credentials"),
        *("--root", "--wd", "--", *argv),
        env={**env},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), timeout_seconds)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    return CommandResult(process.returncode or 0, output[-10240:].decode(errors="replace").strip())
