"""What can go wrong in a fetch. Each text is one line that says what to do.

Most are final: the next run meets them again, until somebody changes something. Those that may pass by
themselves say so.

FetchError
├── UsageError            the URI or a flag can't be used: exit status 2
├── UnsafeNameError       a file's name would leave the folder, or can't be a file's
├── SourceError           the source has no such model, or does not give it to us
│   ├── RefusedError      an HTTP status that trying again does not change
│   └── NoPartsError      a server that gives a file whole alone, where a part of it is wanted
├── UnavailableError      a source that breaks off, drips or is busy: it is tried again, and raised at the end
├── ChangedError          a file is another one than when the fetch began
├── CorruptError          what came is not what was announced
└── FolderError           the folder can't be written
    ├── NoSpaceError      the disk is full, or would be
    └── StorageError      the disk fails just now
"""

from typing import ClassVar

_AGAIN = (408, 425, 429)
_NEVER = (501, 505)
"""Of 500 and more: what a server can't do at all, such as HEAD."""


def is_busy(status: int) -> bool:
    """Whether what answers with this HTTP status may do later what it does not do now."""
    return status in _AGAIN or (status >= 500 and status not in _NEVER)


class FetchError(Exception):
    """The root of this package's exceptions."""

    is_final: ClassVar[bool] = True
    """Whether it is in vain to try again before somebody has changed something."""


class UsageError(FetchError):
    """The URI or a flag can't be used: exit status 2."""


class UnsafeNameError(FetchError):
    """A file's name would leave the folder, or can't be a file's."""


class SourceError(FetchError):
    """The source has no such model, or does not give it to us."""


class RefusedError(SourceError):
    """An HTTP status that trying again does not change. The source says what it means."""

    def __init__(self, message: str, status: int, code: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        """What the Hub's X-Error-Code says, such as `GatedRepo`."""
        self.reason = reason
        """How the body begins."""


class NoPartsError(SourceError):
    """A server that gives a file whole alone, where a part of it is wanted."""


class UnavailableError(FetchError):
    """A source that breaks off, drips or is busy: it is tried again, and raised after the last try.

    A busy source may ask for some time of quiet.
    """

    is_final = False

    def __init__(self, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        """None where it does not say for how long."""


class ChangedError(FetchError):
    """A file is another one than when the fetch began."""

    is_final = False


class CorruptError(FetchError):
    """What came is not what was announced."""

    is_final = False


class FolderError(FetchError):
    """The folder can't be written."""


class NoSpaceError(FolderError):
    """The disk is full, or would be."""

    is_final = False


class StorageError(FolderError):
    """The disk fails just now."""

    is_final = False
