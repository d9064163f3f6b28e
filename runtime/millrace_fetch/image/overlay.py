"""The entries that a container sees of its image's layers: upper layers hide entries of lower ones. Pure."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from millrace_fetch.errors import SourceError, UnsafeNameError

ROOT = "models"
"""The folder of an image with the model."""
_OUTSIDE = "outside"
"""The folder of what is not the model's, in an archive with another ROOT."""
_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"


class Member(NamedTuple):
    """An entry of a layer."""

    path: str
    """In the image, without a leading slash."""
    size_bytes: int
    is_plain: bool
    """Whether it is a regular file with all its bytes in the layer: no link, no device, no sparse file."""
    layer: int
    number: int
    """Its place among the layer's entries."""


def normalise(path: str) -> str:
    """Return the path without `./` and outer slashes. Raises UnsafeNameError if it contains `..`."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise UnsafeNameError(f"a layer has an entry {path[:80]!r}, which leaves its folder: refused")
    return "/".join(parts)


def relocate(path: str, root: str) -> str:
    """Return a path with ROOT in place of `root`, the model's folder in this kind of archive.

    Raises UnsafeNameError for a path that leaves the archive.
    """
    path = normalise(path)
    if root == ROOT:
        return path
    inside = f"{root}/" if root else ""
    return f"{ROOT}/{path.removeprefix(inside)}" if path.startswith(inside) else f"{_OUTSIDE}/{path}"


def overlay(layers: Sequence[Sequence[Member]], root: str = ROOT) -> dict[str, Member]:
    """Return the model's files by their names below ROOT. The lowest layer comes first.

    Raises SourceError if there are none below `root`, the name of that folder in the archives.
    """
    found = find_files(layers)
    if not found:
        raise SourceError(f"the image has no files below /{root}, where a model's files should be")
    return found


def find_files(layers: Sequence[Sequence[Member]]) -> dict[str, Member]:
    """Return the files of these layers by their names below ROOT. The lowest layer comes first."""
    found: dict[str, Member] = {}
    for members in layers:
        hidden = {_hidden(member.path) for member in members} - {None}
        found = {path: member for path, member in found.items() if hidden.isdisjoint(_ways_to(path))}
        found |= {member.path: member for member in members if _hidden(member.path) is None}
    inside = f"{ROOT}/"
    return {path.removeprefix(inside): member for path, member in found.items() if path.startswith(inside)}


def check_plain(name: str, member: Member) -> None:
    """Raise SourceError if a needed file is a link or a device."""
    if not member.is_plain:
        raise SourceError(f"{name} is a link in the image, which is not followed: put the file itself there")


def concerns_model(path: str) -> bool:
    """Whether an entry may be a file of the model, or hide files of it."""
    return path.startswith(f"{ROOT}/") or _hidden(path) is not None


def _hidden(path: str) -> str | None:
    """Return the path that a whiteout hides in lower layers; None if it is no whiteout."""
    folder, _, name = path.rpartition("/")
    if name == _OPAQUE:
        return folder
    if name.startswith(_WHITEOUT):
        return f"{folder}/{name.removeprefix(_WHITEOUT)}".lstrip("/")
    return None


def _ways_to(path: str) -> Iterable[str]:
    """Yield the path and all its parent folders, the last of which is the empty root."""
    yield path
    while path:
        path = path.rpartition("/")[0]
        yield path
