"""A disk that keeps what was waited for, and of all else what it likes.

After a failure each folder is as it was when somebody waited for it, or as it is now; none follows another.
A file has what somebody waited for, and zeros after that. File systems keep more order, each another one.
"""

import hashlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from millrace_fetch.store.marker import Marker, parse_marker

Listing = dict[str, int | None]
"""Inodes by name; None for a folder."""
Tree = dict[str, bytes]
"""Contents of files by their names below the root."""


class Disk:
    """Looks after each step what a power failure would leave, and whether a marker tells wrong of it."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = root
        self._inodes = root.with_name("inodes")
        self._inodes.mkdir()
        self._listings: dict[Path, Listing] = {}
        self._contents: dict[int, bytes] = {}
        self.faults: set[str] = set()
        self.num_steps = 0
        self._link = os.link
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, lambda descriptor: self.keep(_path_of(descriptor)))
        for name in ("rename", "unlink"):
            monkeypatch.setattr(os, name, self._followed(getattr(os, name)))

    def keep(self, path: Path) -> None:
        """Write a folder's names, or a file's bytes: nobody loses them any more."""
        if path.is_dir():
            self._listings[path] = self._list(path)
        else:
            self._contents[self._hold(path)] = path.read_bytes()

    def _followed(self, step: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: object, **named: object) -> None:
            step(*arguments, **named)
            self._look()

        return call

    def _look(self) -> None:
        self.num_steps += 1
        for tree in self._fail():
            self.faults |= set(find_faults(tree))

    def _hold(self, path: Path) -> int:
        """Return a file's inode, which is not given to another file from now on."""
        inode = path.lstat().st_ino
        if not (self._inodes / str(inode)).exists():
            self._link(path, self._inodes / str(inode))
        return inode

    def _list(self, folder: Path) -> Listing:
        return {path.name: None if path.is_dir() else self._hold(path) for path in folder.iterdir()}

    def _fail(self) -> Iterator[Tree]:
        own = self._root / ".millrace"
        for is_new in itertools.product([False, True], repeat=3):
            now = dict(zip((self._root, own, own / "parts"), is_new, strict=True))
            yield dict(self._read(self._root, now))

    def _read(self, folder: Path, now: Mapping[Path, bool]) -> Iterator[tuple[str, bytes]]:
        is_now = now.get(folder, True) and folder.exists()
        for name, inode in (self._list(folder) if is_now else self._listings.get(folder, {})).items():
            path = folder / name
            if inode is None:
                yield from self._read(path, now)
            else:
                size = (self._inodes / str(inode)).stat().st_size
                content = self._contents.get(inode, b"")
                yield path.relative_to(self._root).as_posix(), content + bytes(max(0, size - len(content)))


def _path_of(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}").readlink()


def find_faults(tree: Tree) -> Iterator[str]:
    """Yield what is believed of a tree by all boots of the machine, and is not so."""
    whole, previous = (_read_marker(tree, f".millrace/{name}.json") for name in ("manifest", "previous"))
    if whole is not None:
        yield from (f"called whole with another {name}" for name in _list_others(tree, whole))
    elif previous is not None:
        others = [name for name in _list_others(tree, previous) if previous.files[name].identity is not None]
        yield from (f"kept with another {name}" for name in others if not _has_journal(tree, name))


def _has_journal(tree: Tree, name: str) -> bool:
    return f".millrace/parts/{name}.journal" in tree


def _read_marker(tree: Tree, name: str) -> Marker | None:
    marker = parse_marker(tree.get(name, b"").decode())
    return marker if marker is not None and marker.boot is None else None


def _list_others(tree: Tree, marker: Marker) -> list[str]:
    """Return the files that are there in their size, and are not what the marker says."""
    return [
        name
        for name, record in marker.files.items()
        if len(content := tree.get(name, b"")) == record.size_bytes
        and hashlib.sha256(content).hexdigest() != record.sha256
    ]
