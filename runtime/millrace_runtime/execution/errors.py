"""The failures of execution.

ExecutionError
├── ModelError            the model, or the settings it is to run with, can't be used
│   ├── ModelNotFoundError
│   ├── UnsupportedModelError
│   ├── BadCheckpointError
│   └── CapacityError     it does not fit the memory, the length or the number of workers
├── WorkerError           a worker has ended, failed or is stopped
└── PlanError             a step plan breaks the protocol: our own bug

Only torch's own allocator has an exception class for a device without memory; `is_out_of_memory` knows the
other ones by their texts.
"""

from collections.abc import Iterator


class ExecutionError(Exception):
    """Any failure of execution."""


class ModelError(ExecutionError):
    """The model can't be served with these settings; the text says what to do."""


class ModelNotFoundError(ModelError):
    """No model lies at the path."""


class UnsupportedModelError(ModelError):
    """config.json describes an unsupported model."""


class BadCheckpointError(ModelError):
    """The weights are missing, damaged or of other shapes or types than config.json says."""


class CapacityError(ModelError):
    """The model or its KV cache does not fit the memory, its own length, or so many workers."""


class WorkerError(ExecutionError):
    """One of the workers that share the model is gone; the text says which and why."""


class PlanError(ExecutionError):
    """A plan names a slot, block or token that does not exist, or a call comes out of turn."""


_WORDS = ("out of memory", "ALLOC_FAILED", "memory allocation failed")
"""The words of CUDA, cuBLAS and NCCL in a RuntimeError's text."""
_LONGEST = 500
"""Letters of an error's text. A compiler's may have the whole program."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error, or one of its causes, says that there was no memory.

    A failed recording raises another error, about the recording.
    """
    return any(word.lower() in str(one).lower() for one in _chain(error) for word in _WORDS)


def describe(error: Exception) -> str:
    """Return an error's type and its text in one line.

    Of an error of CUDA only the first line: torch's other lines are advice for developers.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith("CUDA error"):
        del lines[1:]
    return ": ".join([type(error).__name__, *(["; ".join(lines)[:_LONGEST]] if lines else [])])


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
