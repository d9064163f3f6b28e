"""The errors of requests to the API server, and of the start.

ClusterError
├── TransientError        worth another try: network, 429, 5xx
│   └── ExpiredError      410: the list that was being read is forgotten
├── ConflictError         409: our view is old, or the object is not ours
├── RefusedError          400, 403, 405, 413, 415, 422: it fails again until the object or a rule changes
│   └── AbsentError       404: the object is gone, or its kind or namespace is
├── NotLeaderError        the Lease is no longer certainly ours; nothing was written
└── BadStartError         the operator cannot begin; the text says what to set
"""


class ClusterError(Exception):
    """The API server did not do what was asked."""


class TransientError(ClusterError):
    """Worth another attempt. `retry_after_seconds` is the server's own wish, if it has one."""

    def __init__(self, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class ExpiredError(TransientError):
    """The API server no longer has the version of a list. Another list has another version."""


class ConflictError(ClusterError):
    """The object has another version than we saw, or is somebody else's."""


class RefusedError(ClusterError):
    """The server refuses this object as it is."""


class AbsentError(RefusedError):
    """There is no such object."""


class NotLeaderError(ClusterError):
    """Another replica may lead by now."""


class BadStartError(ClusterError):
    """The process cannot start: it has no access to an API server. The text says what to set."""
