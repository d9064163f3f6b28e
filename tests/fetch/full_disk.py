"""Runs a fetch whose disk becomes really full at a given moment, and again once there is room.

Prints what came of both as JSON. Arguments: the moment, then those of `millrace fetch`. The folder of `--to`
gets a disk of its own, so this runs where it may mount one.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millrace_fetch.cli import command
from millrace_fetch.store.folder import Folder
from millrace_fetch.transfer.partial_file import PartFile
from testing.model_sources.kills import hash_file, list_files

DISK_BYTES = 16 << 20
KEPT_BYTES = 1 << 20
"""Of the second shard: so much of it has come before."""
MOMENTS = ("data", "journal", "marker")
_PAGE_BYTES = 4096


def fill(disk: Path) -> None:
    """Let somebody else take all room that is left."""
    with (disk / "others").open("wb", buffering=0) as file:
        for size in (1 << 20, _PAGE_BYTES):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    assert os.statvfs(disk).f_bavail == 0, "the disk is not full"


def filling(owner: type, name: str, is_due: Callable[..., bool], disk: Path) -> Callable[[], None]:
    """Fill the disk right before a call that is due. Returns what ends that."""
    real = getattr(owner, name)

    def call(*arguments: Any) -> Any:
        if is_due(*arguments):
            fill(disk)
        return real(*arguments)

    setattr(owner, name, call)
    return lambda: setattr(owner, name, real)


def arm(moment: str, disk: Path) -> Callable[[], None]:
    """Have the disk full while the second shard is written, when its journal begins, or at the end."""
    if moment == "marker":
        return filling(Folder, "_declare", lambda *_: True, disk)
    if moment == "journal":
        return filling(PartFile, "_append", lambda part, line: _is_second(part) and "file" in line, disk)
    return filling(PartFile, "write", lambda part, offset, _: _is_second(part) and offset >= KEPT_BYTES, disk)


def _is_second(part: PartFile) -> bool:
    return part.file.name.startswith("model-00002")


def run(arguments: list[str]) -> dict[str, Any]:
    """Return the status of a fetch and its last words."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        status = command.main(arguments)
    return {"status": status, "said": said.getvalue().splitlines()[-1:]}


def main(moment: str, arguments: list[str]) -> None:
    disk = Path(arguments[arguments.index("--to") + 1])
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(disk)]
    subprocess.run(mounting, check=True)
    folder = disk / "model"
    arguments[arguments.index("--to") + 1] = str(folder)
    disarm = arm(moment, disk)
    first = run(arguments)
    disarm()
    is_marked = (folder / ".millrace" / "manifest.json").exists()
    (disk / "others").unlink()
    second = run(arguments)
    files = {name: hash_file(folder / name) for name in list_files(folder)}
    sys.stdout.write(json.dumps({"first": first, "isMarked": is_marked, "second": second, "files": files}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
