"""Nothing is read or written through a link that somebody else put into the folder."""

import os
import stat
from pathlib import Path

from millrace_fetch.errors import FolderError

NOFOLLOW = os.O_NOFOLLOW | os.O_CLOEXEC
"""For every open: a link that came after the look is refused, too."""


def refuse_links(root: Path, path: Path) -> Path:
    """Return the path. Raises FolderError where what is there is no plain file or folder, at any depth.

    `root` itself is the user's choice, and may be a link.
    """
    below = path.relative_to(root)
    for part in [*reversed(below.parents), below][1:]:
        try:
            mode = (root / part).lstat().st_mode
        except FileNotFoundError:
            break
        except OSError as error:
            raise FolderError(f"{root / part} can't be read ({error.strerror})") from error
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            kind = "a symbolic link" if stat.S_ISLNK(mode) else "no plain file"
            raise FolderError(f"{root / part} is {kind}, which is never followed nor replaced: remove it")
    return path
