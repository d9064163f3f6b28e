"""What this machine must offer before `up` begins; each refusal is one line that says what to do."""

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from e2e.cluster.disk import check_disks, list_needs, nearest_existing
from e2e.cluster.errors import PrecheckFailedError
from e2e.cluster.memory import available_memory
from e2e.cluster.processes import ProcessTable
from e2e.cluster.settings import VENV, Layout

COMPILERS = ("c++", "g++", "clang++")
"""As `millrace_kernels.native.build` looks for them, which is not there yet on a fresh clone."""
INSTALL_COMPILER = "on Debian and Ubuntu write: sudo apt-get install g++"
_NAMESPACE_SETTINGS = (
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "0"),
    ("kernel/unprivileged_userns_clone", "0", "1"),
    ("user/max_user_namespaces", "0", "15000"),
)
"""Below /proc/sys: what forbids user namespaces, and what allows them."""
MEMORY_AT_FIRST = 1_300_000_000
"""Bytes of the cluster with one replica of the example: running_memory_bytes of benchmarks/path."""
MEMORY_TO_RUN = 3_000_000_000
"""Bytes. Garbage may wait in the control plane, and each further replica takes 0.3 GB."""


def check_system() -> None:
    """Refuse a system without the namespaces of Linux."""
    if sys.platform != "linux":
        raise PrecheckFailedError(
            f"the local cluster runs on Linux, or in WSL 2, and this is {sys.platform}; "
            "run it in a Linux virtual machine"
        )


def check_memory(available: int) -> None:
    """Refuse a machine with too little memory available."""
    if available < MEMORY_TO_RUN:
        raise PrecheckFailedError(
            f"{available / 1e9:.1f} GB of memory are available and {MEMORY_TO_RUN / 1e9:.1f} GB are needed: "
            f"the cluster takes {MEMORY_AT_FIRST / 1e9:.1f} GB at first and grows with its replicas; "
            "end other programs, or give the virtual machine more memory"
        )


def check_writable(state: Path) -> None:
    """Refuse a state folder that can't be made or written."""
    if not os.access(nearest_existing(state), os.W_OK):
        raise PrecheckFailedError(f"{state} can't be written; run as its owner or name another --state-dir")


def check_port(port: int, flag: str) -> None:
    """Refuse a port of 127.0.0.1 that is taken, or that we may not have."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise PrecheckFailedError(
                f"port {port} on 127.0.0.1 can't be used ({error.strerror}); end what uses it, or choose "
                f'another: make up ARGS="{flag} {max(port + 1, 1024) if port < 65535 else port - 1}"'
            ) from error


def check_tests() -> None:
    """Refuse a machine that lacks what only the tests need: a compiler, and certificates' maker."""
    check_compiler()
    check_program("openssl", "openssl", "the tests of the gateway's credentials make certificates with it")


def check_program(name: str, package: str, purpose: str) -> None:
    """Refuse a machine without a program that Debian's `package` brings."""
    if not shutil.which(name):
        raise PrecheckFailedError(
            f"{name} is missing, and {purpose}; on Debian and Ubuntu write: sudo apt-get install {package}"
        )


def check_compiler() -> None:
    """Refuse a machine whose native kernels can't be tested."""
    if not has_compiler():
        raise PrecheckFailedError(
            f"there is no C++ compiler ({', '.join(compilers())}), and the tests of the CPU kernels "
            f"need one; {INSTALL_COMPILER}"
        )


def has_compiler() -> bool:
    """Return whether the native kernels can be compiled. Without them a replica computes with torch."""
    return any(map(shutil.which, compilers()))


def compilers() -> tuple[str, ...]:
    """Return the names of compilers that are looked for: the one that CXX gives, or else the usual ones."""
    return (os.environ["CXX"],) if os.environ.get("CXX") else COMPILERS


def check_namespaces() -> None:
    """Refuse a kernel that does not let us make user namespaces, in which the pods run."""
    for name in ("unshare", "nsenter"):
        check_program(name, "util-linux", "pods run in namespaces that it makes and enters")
    try:
        command = ["unshare", "-Urmpf", "true"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired as error:
        raise PrecheckFailedError(f"{' '.join(command)} did not end within 20 s; try it by hand") from error
    if done.returncode:
        raise PrecheckFailedError(
            f"user namespaces are not allowed here ({done.stderr.strip()}); {allow_namespaces(Path('/proc'))}"
        )


def allow_namespaces(proc: Path) -> str:
    """Say what to do, by what /proc shows: a container filters system calls, or a setting of the kernel."""
    if re.search(r"^Seccomp:\s*2$", (proc / "self" / "status").read_text(), re.MULTILINE):
        return (
            "a filter of system calls is in force, as in a container: start it with --security-opt "
            "seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined"
        )
    if setting := namespace_setting(proc / "sys"):
        return f"write: sudo sysctl {setting}"
    return "no setting that we know forbids them; ask who runs this machine, or use a virtual machine"


def namespace_setting(sysctl: Path) -> str | None:
    """Return the kernel setting, below `sysctl`, that would allow user namespaces, if one forbids them."""
    for name, bad, good in _NAMESPACE_SETTINGS:
        path = sysctl / name
        if path.exists() and path.read_text().strip() == bad:
            return f"{name.replace('/', '.')}={good}"
    return None


def check_machine(state: Path, cache: Path, *, must_build: bool) -> None:
    """Refuse a machine on which the cluster could not run. Raises PrecheckFailedError."""
    check_system()
    check_disks(list_needs(state, cache, VENV, os.environ, must_build=must_build))
    if not is_running(state):
        check_memory(available_memory())
    check_writable(state)
    check_namespaces()


def is_running(state: Path) -> bool:
    """Return whether a cluster runs there already, and has its memory."""
    layout = Layout(state)
    return bool(ProcessTable(layout.records, layout.logs).running())
