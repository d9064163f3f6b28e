"""What can go wrong with the native library.

NativeError
├── BuildError        there is no compiled library for these sources, and none can be made
└── RecordError       a model's forward can't be recorded: our own bug, or a shape without a kernel
"""


class NativeError(Exception):
    """The native path can't be used; the text says why."""


class BuildError(NativeError):
    """No library, and no compiler or no room to make one."""


class RecordError(NativeError):
    """The forward does what a record can't hold."""
