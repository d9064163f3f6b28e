"""Refuses unsafe names of a model's files, and too many of them. Pure.

A source is not trusted: a name that leaves the folder could write anywhere.
"""

from collections.abc import Collection

from millrace_fetch.errors import UnsafeNameError

MAX_FILES = 10_000
MAX_NAME_BYTES = 1024
MAX_PART_BYTES = 240
"""A file system allows 255, and the journal adds a suffix."""
OWN_FOLDER = ".millrace"
"""Holds the state of a fetch, so no file of a model may be in it."""
LAYERS = f"{OWN_FOLDER}/layers"
"""Holds the layers of an image until their files are unpacked."""


def check_names(names: Collection[str]) -> None:
    """Raise UnsafeNameError for the first unsafe name, and for too many names."""
    if len(names) > MAX_FILES:
        raise UnsafeNameError(f"the model has {len(names)} files, and more than {MAX_FILES} are refused")
    for name in names:
        if reason := find_fault(name):
            raise UnsafeNameError(f"a file of the model is named {name[:80]!r}, which {reason}: refused")
    folders = {name.rsplit("/", depth)[0] for name in names for depth in range(1, name.count("/") + 1)}
    if both := folders & set(names):
        raise UnsafeNameError(f"{min(both)!r} is both a file and a folder of the model: refused")


def find_fault(name: str) -> str | None:
    """Return why a name is unsafe, or None."""
    parts = name.split("/")
    if name.startswith("/"):
        return "is an absolute path"
    if ".." in parts or "." in parts:
        return "leaves its folder"
    if "" in parts:
        return "has an empty part"
    if "\\" in name or not name.isprintable():
        return "has a backslash, a control character or one that can't be shown"
    if parts[0] == OWN_FOLDER:
        return f"is in {OWN_FOLDER}/, where the state of the fetch is"
    return _find_excess(name, parts)


def _find_excess(name: str, parts: list[str]) -> str | None:
    longest = max(len(part.encode()) for part in parts)
    is_long = len(name.encode()) > MAX_NAME_BYTES or longest > MAX_PART_BYTES
    return "is too long" if is_long else None
