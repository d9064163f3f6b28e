"""What the text worker may use of what this replica may use. Standard library only: the supervisor asks."""

from collections.abc import Mapping

from millrace_runtime.replica.cpu_limit import read_num_cpus

_MAX_THREADS = 4
_SHARE_OF_MEMORY = 1 / 16
"""The weights and the KV cache are to have the most of it."""
_ENOUGH_BYTES = 512 * 1024**2
"""A tokenizer of 128k pieces takes 125 MB; the rest is enough for 0.7 MB of any text."""
_SHARE_OF_LITTLE = 0.25
"""Where enough would be more than this."""
_MAX_MEMORY_BYTES = 4 * 1024**3
"""Nearly 8 MiB of any text, the longest body. What memory is too small for, the worker refuses."""


def plan_text_memory(usable_bytes: int) -> int:
    """Return the text worker's bytes of what the replica may plan with."""
    enough = min(_ENOUGH_BYTES, int(usable_bytes * _SHARE_OF_LITTLE))
    return min(max(int(usable_bytes * _SHARE_OF_MEMORY), enough), _MAX_MEMORY_BYTES)


def count_text_threads(environment: Mapping[str, str]) -> int:
    """Return the threads of a replica with these variables."""
    return min(_MAX_THREADS, read_num_cpus(environment))
