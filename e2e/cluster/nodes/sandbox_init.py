"""Becomes a container: new namespaces, a new root of bind mounts, then the container's main process.

Run as a script of its own (`python -I -S sandbox_init.py SPEC_FD REPORT_FD NODE_PID`) and standard library
only, for it stands between a node and every container. It stays as the parent of the container's first
process, dies with the node, and ends with that process's exit status (128 + N for signal N).

SPEC_FD holds JSON: {argv, env, staging, cwd, hostname, uid, gid, readonly_root,
mounts: [{source, target, kind, readonly, optional}]}. `staging` is an empty folder for the root. `kind` is
"bind", or "cover" (nothing over a folder, where it is seen). `optional` binds only where nothing is yet.
REPORT_FD receives JSON lines until it is closed: {"pid": N} as soon as the first process is there, and
{"error": text, "stage": name} if anything fails, before or after that.
"""

import ctypes
import json
import os
import platform
import signal
import stat
import sys
from typing import Any, NoReturn

NEWNS, NEWUTS, NEWUSER, NEWPID = 0x00020000, 0x04000000, 0x10000000, 0x20000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG = 1
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
SYS_MOUNT_SETATTR = 442  # the same on every architecture
AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = -100, 0x8000, 1
OLD_ROOT = "/.host"
FRESH = ("proc", "tmp", "run")  # made new in each container rather than bound from the host
libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    """Raise the errno of a libc call that answered -1."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2)."""
    encoded = (source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), data.encode())
    check(libc.mount(*encoded), f"mount {kind or 'bind'} {source} on {target}")


def make_readonly(target: str) -> None:
    """Make a mount and all below it read-only (mount_setattr; a plain remount before Linux 5.12)."""
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY, 0, 0, 0)
    answer = libc.syscall(
        ctypes.c_long(SYS_MOUNT_SETATTR),
        ctypes.c_int(AT_FDCWD),
        target.encode(),
        ctypes.c_uint(AT_RECURSIVE),
        ctypes.byref(attributes),
        ctypes.c_size_t(32),
    )
    if answer < 0:
        mount("none", target, flags=MS_REMOUNT | MS_BIND | MS_RDONLY)


def write_file(path: str, text: str) -> None:
    """Write a kernel file in one write."""
    with open(path, "w") as file:  # noqa: PTH123  pathlib costs 8 ms at each container's start
        file.write(text)


def enter_namespaces(uid: int, gid: int) -> None:
    """Leave the host's namespaces; the one identity we have becomes `uid`:`gid` inside."""
    outer_uid, outer_gid = os.geteuid(), os.getegid()
    check(libc.unshare(NEWUSER | NEWNS | NEWPID | NEWUTS), "unshare")
    write_file("/proc/self/setgroups", "deny")
    write_file("/proc/self/uid_map", f"{uid} {outer_uid} 1")
    write_file("/proc/self/gid_map", f"{gid} {outer_gid} 1")


def pivot(staging: str) -> None:
    """Make an empty tmpfs the root; the host's root stands at OLD_ROOT until the mounts are made."""
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    mount("millrace-root", staging, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=256m")
    os.mkdir(staging + OLD_ROOT)  # noqa: PTH102
    number = SYS_PIVOT_ROOT.get(platform.machine())
    if number is None:
        raise OSError(f"pivot_root's number on {platform.machine()} is not known here")
    check(libc.syscall(ctypes.c_long(number), staging.encode(), (staging + OLD_ROOT).encode()), "pivot_root")
    os.chdir("/")


def bind_host_entry(name: str, directory: str = "/") -> None:
    """Show one entry of a host directory at the same place, read-only."""
    source, target = f"{OLD_ROOT}{directory.rstrip('/')}/{name}", f"{directory.rstrip('/')}/{name}"
    mode = os.lstat(source).st_mode
    if stat.S_ISLNK(mode):
        os.symlink(os.readlink(source), target)  # noqa: PTH115, PTH211
    elif stat.S_ISDIR(mode) or stat.S_ISREG(mode):
        make_place(target, is_directory=stat.S_ISDIR(mode))
        mount(source, target, flags=MS_BIND | MS_REC)
        make_readonly(target)


def make_place(target: str, *, is_directory: bool) -> None:
    """An empty folder or file to mount on."""
    if is_directory:
        os.mkdir(target)  # noqa: PTH102
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))


def build_host_view() -> None:
    """The host's top-level folders, read-only, with /proc, /tmp and /run of the container's own."""
    for name in os.listdir(OLD_ROOT):  # noqa: PTH208
        if name not in FRESH and f"/{name}" != OLD_ROOT:
            try_bind(name, "/")
    for name in FRESH:
        os.mkdir(f"/{name}")  # noqa: PTH102
    mount_proc()
    for path in ("/tmp", "/run", "/var/tmp", "/dev/shm"):
        if os.path.isdir(path):  # noqa: PTH112
            mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")


def try_bind(name: str, directory: str) -> None:
    """Bind an entry; leave out what the host forbids us to see."""
    try:
        bind_host_entry(name, directory)
    except PermissionError:
        target = f"{directory.rstrip('/')}/{name}"
        if os.path.isdir(target) and not os.listdir(target):  # noqa: PTH112, PTH208
            os.rmdir(target)  # noqa: PTH106


def mount_proc() -> None:
    """/proc of the new PID namespace; the host's where an outer container masks parts of it."""
    try:
        mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV)
    except PermissionError:
        mount(f"{OLD_ROOT}/proc", "/proc", flags=MS_BIND | MS_REC)


def uncover(directory: str) -> None:
    """Replace a read-only folder by a tmpfs that shows the same entries, so that new ones can be made."""
    entries = os.listdir(directory)  # noqa: PTH208
    shown = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    mount("tmpfs", directory, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    for name in entries:
        source, target = f"/proc/self/fd/{shown}/{name}", f"{directory}/{name}"
        mode = os.lstat(source).st_mode
        if stat.S_ISLNK(mode):
            os.symlink(os.readlink(source), target)  # noqa: PTH115, PTH211
        else:
            make_place(target, is_directory=stat.S_ISDIR(mode))
            mount(source, target, flags=MS_BIND | MS_REC)
    os.close(shown)


def ensure_place(target: str, *, is_directory: bool) -> str:
    """The real path of a place to mount `target` on, made with its parents where it is missing."""
    path = os.path.realpath(target)
    if os.path.exists(path):  # noqa: PTH110
        return path
    parent = ensure_place(os.path.dirname(path), is_directory=True)  # noqa: PTH120
    place = f"{parent.rstrip('/')}/{os.path.basename(path)}"  # noqa: PTH119
    try:
        make_place(place, is_directory=is_directory)
    except OSError:
        uncover(parent)
        make_place(place, is_directory=is_directory)
    return place


def is_shown(target: str) -> bool:
    """Whether a folder is there with what it holds: a volume keeps empty mount points of earlier starts."""
    return os.path.isdir(target) and bool(os.listdir(target))  # noqa: PTH112, PTH208


def apply_mount(wanted: dict[str, Any]) -> None:
    """One of the container's mounts."""
    if wanted["kind"] == "cover":
        if os.path.isdir(wanted["target"]):  # noqa: PTH112
            mount("tmpfs", wanted["target"], "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV, "mode=555")
        return
    source = OLD_ROOT + wanted["source"]
    if wanted.get("optional") and is_shown(wanted["target"]):
        return
    place = ensure_place(wanted["target"], is_directory=os.path.isdir(source))  # noqa: PTH112
    mount(source, place, flags=MS_BIND | MS_REC)
    if wanted.get("readonly"):
        make_readonly(place)


def build_root(spec: dict[str, Any]) -> None:
    """Everything the container sees of a file system."""
    pivot(spec["staging"])
    build_host_view()
    for wanted in spec["mounts"]:
        apply_mount(wanted)
    ensure_place(spec["cwd"], is_directory=True)
    check(libc.umount2(OLD_ROOT.encode(), MNT_DETACH), "umount of the host's root")
    os.rmdir(OLD_ROOT)  # noqa: PTH106
    if spec.get("readonly_root"):
        mount("none", "/", flags=MS_REMOUNT | MS_BIND | MS_RDONLY)


def die_with_parent(parent: int) -> None:
    """SIGKILL for us when our parent ends, also when it has ended already."""
    check(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    if os.getppid() != parent:
        os._exit(1)


def run_program(spec: dict[str, Any], report: int) -> NoReturn:
    """The container's first process: build the root, drop to the program."""
    stage = "mount"
    try:
        check(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
        os.setsid()
        hostname = spec["hostname"].encode()[:64]
        check(libc.sethostname(hostname, len(hostname)), "sethostname")
        build_root(spec)
        stage = "exec"
        os.chdir(spec["cwd"])
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(spec["argv"][0], spec["argv"], spec["env"])
    except OSError as error:
        send_report(report, {"stage": stage, "error": describe(error, spec)})
    os._exit(127)


def describe(error: OSError, spec: dict[str, Any]) -> str:
    """What failed, with the program's name where it was the exec."""
    text = error.strerror or str(error)
    return text if ":" in text else f"{spec['argv'][0]}: {text}"


def send_report(report: int, what: dict[str, Any]) -> None:
    """One line to the node."""
    os.write(report, json.dumps(what).encode() + b"\n")


def main() -> NoReturn:
    """Enter the namespaces, start the program, wait for its end."""
    spec_fd, report = int(sys.argv[1]), int(sys.argv[2])
    die_with_parent(int(sys.argv[3]))
    with os.fdopen(spec_fd) as file:
        spec = json.load(file)
    os.set_inheritable(report, False)
    null = os.open(os.devnull, os.O_RDWR)  # now: pivot_root moves our root too, at first to an empty one
    try:
        enter_namespaces(spec["uid"], spec["gid"])
        child = os.fork()
    except OSError as error:
        send_report(report, {"stage": "unshare", "error": str(error)})
        os._exit(126)
    if child == 0:
        run_program(spec, report)
    send_report(report, {"pid": child})
    os.close(report)
    release_streams(null)
    wait_for_end(child)


def release_streams(null: int) -> None:
    """Let go of the log pipe, so that its end is the end of the container's own processes."""
    for stream in (0, 1, 2):
        os.dup2(null, stream)


def wait_for_end(child: int) -> NoReturn:
    """Pass on how the container's first process ended."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    status = os.waitpid(child, 0)[1]
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
