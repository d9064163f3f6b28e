"""The exceptions of the native library.

NativeError
├── BuildError        there is no compiled library for these sources, and compiling fails
├── PoolError         the limits allow no threads, or no memory for them, with any library
└── RecordError       a model's forward can't be recorded: our own bug, or a shape without a kernel
"""


class NativeError(Exception):
    """The native path can't be used; the message has the reason."""


class BuildError(NativeError):
    """There is no library, and no compiler or no disk space to build one."""


class PoolError(NativeError):
    """No thread can be started."""


class RecordError(NativeError):
    """The forward can't be recorded."""
