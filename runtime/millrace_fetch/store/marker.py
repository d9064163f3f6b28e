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
from millrace_fetch.plan.unsafe_names import check_names

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Marker:
    """The record of a whole model in a folder."""

    source: str
    """The model's URI, without a revision and without secret parts."""
    revision: str
    files: dict[str, FileRecord]
    boot: str | None = None
    """The only boot of the machine for which it counts, if the fetch did not wait for the disk; None: all."""

    @property
    def num_bytes(self) -> int:
        """The size of all files."""
        return sum(record.size_bytes for record in self.files.values())


def read_boot() -> str | None:
    """Return the id of this boot of the machine; None if the system has none."""
    try:
        return _BOOT.read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def render_marker(marker: Marker) -> dict[str, Any]:
    """Return a marker's JSON. A marker for all boots has no `boot`, as in older versions."""
    fields = asdict(marker)
    if marker.boot is None:
        del fields["boot"]
    return fields


def parse_marker(text: str) -> Marker | None:
    """Parse a marker; None if it is unreadable."""
    try:
        fields = json.loads(text)
        files = {name: FileRecord(**record) for name, record in fields.pop("files").items()}
        fields.pop("include", None)  # written by a version that could fetch more files
        check_names(files)  # another user of the volume may have written this
        return Marker(files=files, **fields)
    except (UnsafeNameError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None  # of another version: the model is fetched again


def read_marker(path: Path) -> Marker | None:
    """Return the marker in a file; None if there is none, or an unreadable one."""
    try:
        return parse_marker(path.read_text())
    except (OSError, UnicodeDecodeError):
        return None


def is_torn(path: Path) -> bool:
    """Whether a marker's text is no marker. False if reading fails: the file may be whole."""
    with suppress(OSError):
        return parse_marker(path.read_text(errors="replace")) is None
    return False


def forget_all_but(kept: Collection[str], marker: Marker) -> Marker:
    """Return a marker in which only `kept` files have an identity. The state of the others is unknown."""
    files = {
        name: record if name in kept else replace(record, identity=None)
        for name, record in marker.files.items()
    }
    return replace(marker, files=files)
