"""What can go wrong in a measurement.

BenchmarkError
├── EngineError         an engine did not start, ended, hung, or made another number of tokens than asked for
├── UnsupportedError    our commit lacks what a part measures
└── UsageError          a flag names what does not exist
"""


class BenchmarkError(Exception):
    """Anything below."""


class EngineError(BenchmarkError):
    """An engine can't be measured; the text says why and where to look."""


class UnsupportedError(BenchmarkError):
    """A part can't be measured; the text says which flag or metric is missing."""


class UsageError(BenchmarkError):
    """The flags ask for what does not exist; the text says what does."""
