"""What can go wrong in the plugin. Each text is one line that says what to do.

PluginError
├── UsageError                  an argument can't be used: exit status 2
├── AnsweredError               the answer is there, and the exit status is 1 all the same
│   ├── UnwrittenError          a file of it can't be written
│   └── UnfitError              it says that a model does not fit
└── ServerError                 kubectl failed: the text is what it said
    └── ConflictError           the object has changed since it was read
"""


class PluginError(Exception):
    """The root of this package's exceptions: exit status 1."""


class UsageError(PluginError):
    """An argument can't be used: exit status 2."""


class AnsweredError(PluginError):
    """The answer is there, and the exit status is 1 all the same."""

    def __init__(self, message: str, answer: str) -> None:
        super().__init__(message)
        self.answer = answer
        """What is printed."""


class UnwrittenError(AnsweredError):
    """A file of the answer can't be written."""


class UnfitError(AnsweredError):
    """The answer says that a model does not fit."""


class ServerError(PluginError):
    """What kubectl was asked for failed; the text is what it said."""


class ConflictError(ServerError):
    """The object has changed since it was read."""
