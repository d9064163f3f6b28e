"""What can go wrong in a fetch. Each text is one line that says what to do.

FetchError
├── UsageError            the URI or a flag can't be used: exit status 2
├── UnsafeNameError       a file's name would leave the folder, or can't be a file's
├── SourceError           the source has no such model, or does not give it to us
│   └── RefusedError      an HTTP status that trying again does not change
├── UnavailableError      a cut connection, 429 or 5xx: it is tried again, and raised after the last try
├── ChangedError          a file is another one than when the fetch began
├── CorruptError          what came is not what was announced
└── FolderError           the folder can't be written
    └── NoSpaceError      the disk is full, or would be
"""


class FetchError(Exception):
    """The root of this package's exceptions: exit status 1."""


class UsageError(FetchError):
    """The URI or a flag can't be used: exit status 2."""


class UnsafeNameError(FetchError):
    """A file's name would leave the folder, or can't be a file's."""


class SourceError(FetchError):
    """The source has no such model, or does not give it to us."""


class RefusedError(SourceError):
    """An HTTP status that trying again does not change. The source says what it means."""

    def __init__(self, message: str, status: int, code: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        """What the Hub's X-Error-Code says, such as `GatedRepo`."""


class UnavailableError(FetchError):
    """A cut connection, 429 or 5xx: it is tried again, and raised after the last try."""

    def __init__(self, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class ChangedError(FetchError):
    """A file is another one than when the fetch began."""


class CorruptError(FetchError):
    """What came is not what was announced."""


class FolderError(FetchError):
    """The folder can't be written."""


class NoSpaceError(FolderError):
    """The disk is full, or would be."""
