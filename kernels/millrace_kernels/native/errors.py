"""What can go wrong with the native library.

NativeError
├── BuildError        there is no compiled library for these sources, and none can be made
├── PoolError         the limits leave no threads, or no memory for them: no library does better
└── RecordError       a model's forward can't be recorded: our own bug, or a shape without a kernel
"""


class NativeError(Exception):
    """The native path can't be used; the text says why."""


class BuildError(NativeError):
    """No library, and no compiler or no room to make one."""


class PoolError(NativeError):
    """No threads to compute with."""


class RecordError(NativeError):
    """The forward can't be recorded."""
