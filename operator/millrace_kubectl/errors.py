"""What can go wrong in the plugin. Each text is one line that says what to do.

PluginError
├── UsageError                  an argument can't be used: exit status 2
├── UnwrittenError              the answer is there, and a file of it can't be written
└── ServerError                 kubectl failed: the text is what it said
    └── ConflictError           the object has changed since it was read
"""


class PluginError(Exception):
    """The root of this package's exceptions: exit status 1."""


class UsageError(PluginError):
    """An argument can't be used: exit status 2."""


class UnwrittenError(PluginError):
    """The answer is there, and a file of it can't be written."""

    def __init__(self, message: str, answer: str) -> None:
        super().__init__(message)
        self.answer = answer
        """What is printed all the same."""


class ServerError(PluginError):
    """What kubectl was asked for failed; the text is what it said."""


class ConflictError(ServerError):
    """The object has changed since it was read."""
