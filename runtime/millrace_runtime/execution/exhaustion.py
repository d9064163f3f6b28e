"""Whether a device had no memory left. Only torch's own allocator says so with a class of its own."""

from collections.abc import Iterator

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
