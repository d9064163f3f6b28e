"""The marker of a whole model in a folder: which model, and in which boots of the machine it counts.

A marker counts for ever if its fetch waited for the disk (fsync). Otherwise it counts until the machine
reboots: a reboot may lose bytes that the disk had not written, although the names of the files remain.
"""

import json
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from millrace_fetch.errors import UnsafeNameError
from millrace_fetch.plan.manifest import FileRecord
from millrace_fetch.plan.selection import check_names

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Marker:
    """What the folder holds, once it is whole."""

    source: str
    """Where the model is, without a revision and without what is secret."""
    revision: str
    files: dict[str, FileRecord]
    boot: str | None = None
    """The boot of the machine that it counts for, where nobody waited for the disk; None: for all."""

    @property
    def num_bytes(self) -> int:
        """The size of all files."""
        return sum(record.size_bytes for record in self.files.values())


def read_boot() -> str | None:
    """Return what tells this boot of the machine from all others; None where nothing does."""
    try:
        return _BOOT.read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def render_marker(marker: Marker) -> dict[str, Any]:
    """Return a marker's JSON. One of all boots is as it was before there were others."""
    fields = asdict(marker)
    if marker.boot is None:
        del fields["boot"]
    return fields


def parse_marker(text: str) -> Marker | None:
    """Return what a folder holds that has this text for its marker; None where it can't be read."""
    try:
        fields = json.loads(text)
        files = {name: FileRecord(**record) for name, record in fields.pop("files").items()}
        fields.pop("include", None)  # of a version that fetched more files
        check_names(files)  # who else writes the volume may have written this
        return Marker(files=files, **fields)
    except (UnsafeNameError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None  # of another version: then it is fetched anew


def read_marker(path: Path) -> Marker | None:
    """Return the marker in a file; None where there is none, or none that can be read."""
    try:
        return parse_marker(path.read_text())
    except (OSError, UnicodeDecodeError):
        return None


def is_torn(path: Path) -> bool:
    """Whether a marker's text says nothing. One that only can't be read may be whole."""
    with suppress(OSError):
        return parse_marker(path.read_text(errors="replace")) is None
    return False


def forget_all_but(kept: Collection[str], marker: Marker) -> Marker:
    """Return a marker that says what these files are, and of the others only that they are ours."""
    files = {
        name: record if name in kept else replace(record, identity=None)
        for name, record in marker.files.items()
    }
    return replace(marker, files=files)
