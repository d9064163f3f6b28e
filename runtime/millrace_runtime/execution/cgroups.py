"""The cgroups that bound this process. Standard library only: the supervisor imports it."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

MOUNT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def find_groups(root: Path, controller: str, membership: Path) -> Iterator[Path]:
    """Yield the folders of our group and of those above it, up to the root of a hierarchy.

    `controller` is its name in /proc/self/cgroup; version 2 has none.
    """
    group = _find_group(membership, controller)
    for parent in (group, *group.parents):
        yield root / parent


def _find_group(membership: Path, controller: str) -> PurePosixPath:
    """Return our group below the root, or the root itself where /proc/self/cgroup does not name it.

    In a container the path may be the host's, and only the mount's root is there.
    """
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if controller in controllers.split(","):
            return PurePosixPath(path.lstrip("/"))
    return PurePosixPath()
