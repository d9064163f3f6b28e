"""The exceptions of a fetch. Each message is one line that says what to do.

Most errors are final: a retry fails in the same way until a person changes something. The others have
`is_final = False`.

FetchError
├── UsageError            the URI or a flag can't be used: exit status 2
├── UnsafeNameError       a file's name would leave the folder, or is no name of a file
├── SourceError           the source has no such model, or refuses access to it
│   ├── UnfitFileError    a file that a replica needs is absent, or a pointer of Git LFS
│   ├── RefusedError      an HTTP status that a retry does not change
│   └── NoPartsError      the server sends files only whole, and a part is needed
├── UnavailableError      the source breaks off, is too slow or busy: raised after the last retry
├── ChangedError          a file at the source has changed since the fetch began
├── CorruptError          the bytes are not those that the source announced
└── FolderError           the folder can't be written
    ├── NoSpaceError      the disk is full, or would be
    └── StorageError      the disk fails for the moment
"""

from typing import ClassVar


class FetchError(Exception):
    """The root of this package's exceptions."""

    is_final: ClassVar[bool] = True
    """Whether a retry is useless until a person has changed something."""


class UsageError(FetchError):
    """The URI or a flag can't be used: exit status 2."""


class UnsafeNameError(FetchError):
    """A file's name would leave the folder, or is no name of a file."""


class SourceError(FetchError):
    """The source has no such model, or refuses access to it."""


class UnfitFileError(SourceError):
    """A file that a replica needs is absent, or a pointer of Git LFS: no replica can serve the model."""


class RefusedError(SourceError):
    """An HTTP status that a retry does not change. `Source.explain` says what it means."""

    def __init__(self, message: str, status: int, code: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        """The value of the Hub's X-Error-Code, such as `GatedRepo`."""
        self.reason = reason
        """The beginning of the body."""


class NoPartsError(SourceError):
    """The server sends files only whole, and a part is needed."""


class UnavailableError(FetchError):
    """The source breaks off, is too slow or busy: raised after the last retry.

    A busy source may send Retry-After.
    """

    is_final = False

    def __init__(self, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        """None without a Retry-After."""


class ChangedError(FetchError):
    """A file at the source has changed since the fetch began."""

    is_final = False


class CorruptError(FetchError):
    """The bytes are not those that the source announced."""

    is_final = False


class FolderError(FetchError):
    """The folder can't be written."""


class NoSpaceError(FolderError):
    """The disk is full, or would be."""

    is_final = False


class StorageError(FolderError):
    """The disk fails for the moment."""

    is_final = False
