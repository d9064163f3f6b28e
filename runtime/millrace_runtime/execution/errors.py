"""What can go wrong in execution.

ExecutionError
├── ModelError            the model, or the settings it is to run with, can't be used
│   ├── ModelNotFoundError
│   ├── UnsupportedModelError
│   ├── BadCheckpointError
│   └── CapacityError     its KV cache has no room
├── WorkerError           a worker has ended, failed or is stopped
└── PlanError             a step plan breaks the protocol: our own bug

Whether a device had no memory left. Only torch's own allocator says so with a class of its own.
"""

from collections.abc import Iterator


class ExecutionError(Exception):
    """Any failure of execution."""


class ModelError(ExecutionError):
    """The model can't be served as asked; the text says what to do about it."""


class ModelNotFoundError(ModelError):
    """No model lies at the path."""


class UnsupportedModelError(ModelError):
    """config.json describes a model that we can't run."""


class BadCheckpointError(ModelError):
    """The weights are missing, damaged or of other shapes than config.json says."""


class CapacityError(ModelError):
    """The KV cache has no room for one sequence of the length asked for."""


class WorkerError(ExecutionError):
    """One of the workers that hold the model together is gone; the text says which and why."""


class PlanError(ExecutionError):
    """The plan names a slot, block or token that does not exist."""


_WORDS = ("out of memory", "ALLOC_FAILED", "memory allocation failed")
"""Of CUDA, of cuBLAS and of NCCL, in the text of a RuntimeError."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error, or one that it was raised after, says that there was no memory.

    A recording that fails ends with another error of its own, about the recording.
    """
    return any(word.lower() in str(one).lower() for one in _chain(error) for word in _WORDS)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
