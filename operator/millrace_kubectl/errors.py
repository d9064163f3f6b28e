"""The errors of the plugin. Each text is one line that says what to do.

PluginError
├── UsageError                  a bad argument: exit status 2
├── AnsweredError               there is an answer, but the exit status is 1
│   ├── UnwrittenError          a file of the answer can't be written
│   └── UnfitError              the answer says that a model does not fit
└── ServerError                 kubectl failed: the text is kubectl's message
    └── ConflictError           the object has changed since it was read
"""


class PluginError(Exception):
    """The root of this package's exceptions: exit status 1."""


class UsageError(PluginError):
    """A bad argument: exit status 2."""


class AnsweredError(PluginError):
    """There is an answer, but the exit status is 1."""

    def __init__(self, message: str, answer: str) -> None:
        super().__init__(message)
        self.answer = answer
        """The text to print."""


class UnwrittenError(AnsweredError):
    """A file of the answer can't be written."""


class UnfitError(AnsweredError):
    """The answer says that a model does not fit."""


class ServerError(PluginError):
    """kubectl failed; the text is kubectl's message."""


class ConflictError(ServerError):
    """The object has changed since it was read."""
